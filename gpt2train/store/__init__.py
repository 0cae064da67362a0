"""Bottom of the layers: atomic files, manifests, finished outputs, processes, progress."""
