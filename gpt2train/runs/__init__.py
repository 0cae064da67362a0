"""Runs side by side: what each run folder says of itself, as a table and as a page of curves. No torch."""
