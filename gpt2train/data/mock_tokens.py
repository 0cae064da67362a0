"""Mock tokens, for the first run of a layout without any data: the same on every machine, and in no file.

Each token is the one before it plus 1, 2 or 3, so that a model that learns nears a loss of log 3 = 1.0986.
"""

import numpy as np

from gpt2train.data.indexed import TokenDataset
from gpt2train.errors import UserError

MOCK = "mock:"  # begins the name of mock tokens, as `mock:50257` of a vocabulary of 50,257
DOCUMENTS, MIN_LENGTH, MAX_LENGTH = 2048, 64, 1024


def mock_dataset(name: str) -> TokenDataset:
    """Make mock tokens of a vocabulary: 2,048 documents of 64 to 1,024 tokens, about a million in all.

    Raises:
        UserError: the name has no size of a vocabulary.
    """
    size = name.removeprefix(MOCK)
    if not size.isdecimal() or int(size) < 2:
        raise UserError(f"{name} is no name of mock tokens; give the size of the vocabulary, as {MOCK}50257")
    vocab = int(size)
    lengths = (MIN_LENGTH + _mixed(DOCUMENTS, 1) % (MAX_LENGTH - MIN_LENGTH + 1)).astype(np.int32)
    steps = 1 + _mixed(int(lengths.sum()), 2) % 3
    tokens = np.cumsum(steps, dtype=np.int64) % vocab
    return TokenDataset(lengths, np.arange(DOCUMENTS + 1), tokens.astype(np.uint16 if vocab <= 1 << 16 else np.int32))


def _mixed(count: int, seed: int) -> np.ndarray:
    """Return numbers without a pattern, int64, by the finalizer of splitmix64 (Steele et al. 2014)."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed << 32)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state >> np.uint64(33)).astype(np.int64)
