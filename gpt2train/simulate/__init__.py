"""Simulation of a training step: one process runs the engine of any rank of any layout, without memory or peers."""
