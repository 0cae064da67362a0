"""Atomic files and command-line conventions."""
