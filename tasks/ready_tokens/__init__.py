"""Token files that were made elsewhere, as the input of a training."""
