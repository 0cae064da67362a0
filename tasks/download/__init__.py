"""Download step: polite, bounded fetching of pages from public addresses only."""
