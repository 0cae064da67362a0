"""Tokenisation: encode each shard of documents, merge the encoded shards of each split."""
