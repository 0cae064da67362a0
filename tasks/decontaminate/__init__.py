"""Decontamination: remove n-grams of the evaluation sets from the training text."""
