"""Opt-in rules about the quality of a text; each is off by default and has a reason code of its own."""

from tasks.clean.filters.chain import FilterSettings, apply
from tasks.clean.filters.found import Found

__all__ = ["FilterSettings", "Found", "apply"]
