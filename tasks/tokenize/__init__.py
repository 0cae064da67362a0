"""Documents to token files: each shard encoded, the shards of a split joined."""

from tasks.tokenize.step import TokenizeSettings, tokenize

__all__ = ["TokenizeSettings", "tokenize"]
