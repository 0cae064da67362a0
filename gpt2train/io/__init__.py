"""Atomic files, heartbeats, progress and command-line conventions."""
