"""Launcher for Slurm: a batch script from the settings, submitted, followed, and resubmitted until the run is done."""
