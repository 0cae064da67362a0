"""Parallelism: device mesh, FSDP, tensor, sequence and pipeline parallelism."""
