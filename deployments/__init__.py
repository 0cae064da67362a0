"""Deployments for a Prefect server, as package data."""
