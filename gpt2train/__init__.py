"""gpt2train: the training engine. Knows torch; knows neither Prefect nor the network."""

__version__ = "0.1.0"
