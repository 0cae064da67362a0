"""Launchers of a training job, and forwarding of its log lines."""
