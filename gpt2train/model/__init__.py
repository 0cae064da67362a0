"""GPT-2 model, its loss, initial values and KV cache."""
