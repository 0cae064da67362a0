"""Checkpoints: saving, verification, resuming and retention."""
