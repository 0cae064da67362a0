"""Cleaning: text repair, length and language tests, opt-in quality filters, assignment to a split."""
