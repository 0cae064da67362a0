"""Token files, tokenizer, sample order and batches."""
