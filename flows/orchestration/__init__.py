"""Prefect integration of the recipes: flows, task runners, retries and watches of a run."""
