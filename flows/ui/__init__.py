"""User interface of a run: console, artifacts of the Prefect UI, log filters, help pages."""
