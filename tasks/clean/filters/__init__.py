"""Opt-in quality filters, one module each; each is off by default and has its own reason codes."""
