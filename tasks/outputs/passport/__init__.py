"""Documents about a corpus and its models, from manifests alone: cards, Croissant, lineage, packages, signature."""
