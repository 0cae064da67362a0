"""Fine-tuning: rows of a task's files as samples, and the scores of the tuned model."""
