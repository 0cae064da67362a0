"""Estimates of memory and step time, and the search for a parallel layout."""
