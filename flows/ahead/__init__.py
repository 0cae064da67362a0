"""What is known before anything starts: what a run would do, what it would take, and what is missing."""
