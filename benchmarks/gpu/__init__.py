"""Proof of the engine on a GPU: `python -m benchmarks.gpu`."""
