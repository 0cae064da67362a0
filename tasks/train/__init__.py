"""Training as one job: launchers, GPU queue, and its metrics while it runs."""
