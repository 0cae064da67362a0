"""Report of a run from its manifests, as one HTML page and as Markdown."""
