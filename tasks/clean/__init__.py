"""Repair a text, test its length and language, apply the opt-in filters, and say which split it is in."""

from tasks.clean.step import CleanSettings, clean

__all__ = ["CleanSettings", "clean"]
