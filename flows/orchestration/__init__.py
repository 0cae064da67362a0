"""Prefect integration of the recipes: flows, task runners, GPU slots, retries and watches of a run."""
