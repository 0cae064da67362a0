"""Evaluation of models and checkpoints on LAMBADA, WikiText and held-out documents."""
