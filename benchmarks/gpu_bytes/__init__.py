"""Bytes, products and predicted time of a training step on a GPU, without one: `python -m benchmarks.gpu_bytes`."""
