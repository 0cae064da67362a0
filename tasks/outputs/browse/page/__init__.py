"""Files of the page of `gpt2train data browse`."""
