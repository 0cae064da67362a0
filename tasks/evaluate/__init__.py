"""Scores of a merged model: cloze accuracy and perplexities."""
