"""What a run shows: in the terminal, on its page in the Prefect UI, in its log."""
