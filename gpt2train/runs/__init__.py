"""Comparison of runs as a text table and as an HTML page with curves; does not import torch."""
