"""Tokenizer of a run: trained on its documents, the published one of GPT-2, or the user's own."""
