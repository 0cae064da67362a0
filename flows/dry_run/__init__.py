"""Dry run: the steps of a run, the resources that it needs, and the resources that this machine lacks."""
