"""Removal of pages from an output, with the samples and steps that read them (`gpt2train forget`)."""
