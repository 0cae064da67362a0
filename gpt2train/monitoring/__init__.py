"""Metrics, logs, trackers and profiles of a training run."""
