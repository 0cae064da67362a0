"""Tasks of a few lines of TOML over JSON lines: multiple choice, schemas, greedy matches and perplexity."""
