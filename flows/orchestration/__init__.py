"""Prefect integration of the recipes: flows, task runners, GPU slots, retries, cancellation and crash reports."""
