"""Tools on a finished output: look into it, remove documents from it, describe it, prove it."""
