"""Proof of an output: hashes of its files, the chain of its steps, and batches that are done again and compared."""
