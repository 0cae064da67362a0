"""Opt-in quality filters; each is off by default and has its own reason codes."""

from tasks.clean.filters.filter_chain import FilterSettings, apply
from tasks.clean.filters.verdict import Rejection

__all__ = ["FilterSettings", "Rejection", "apply"]
