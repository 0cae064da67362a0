"""Merge a sharded checkpoint to a Hugging Face model folder."""
