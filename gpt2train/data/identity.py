"""Identity of a token dataset, independent of its path, by which runs and checkpoints recognise their data."""

import hashlib

import numpy as np

from gpt2train.data.indexed import TokenDataset

SAMPLE_CHUNKS, CHUNK_TOKENS = 64, 1024  # this many chunks of this many tokens are hashed


def tokens_identity(data: TokenDataset) -> tuple[str, int]:
    """Hash of a dataset's document lengths and of a sample of its tokens, and its number of tokens.

    A part of a dataset has the identity of a file with the same documents.
    """
    count = len(data.tokens)
    digest = hashlib.sha256(np.ascontiguousarray(data.lengths, dtype="<i8").data)
    digest.update(np.ascontiguousarray(data.documents, dtype="<i8").data)
    for start in np.linspace(0, max(0, count - CHUNK_TOKENS), SAMPLE_CHUNKS, dtype=np.int64).tolist():
        digest.update(data.tokens[start : start + CHUNK_TOKENS].astype("<i8").data)
    return digest.hexdigest(), count
