"""Fetching pages: polite, bounded, and never from an address that is not public."""
