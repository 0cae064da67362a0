"""Local web page of the documents of an output and their way through the steps (`gpt2train data browse`)."""
