"""Data steps that plug-ins add: from shards of documents to shards of documents, between cleaning and shuffle."""
