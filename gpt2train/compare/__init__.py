"""Comparison of two corpora by small models that are trained on equal numbers of tokens of each."""
