"""Token dataset read as one stream, from one `.bin/.idx` pair, one raw `.bin` file, or several shards of either.

Shards are named `<prefix>-00000-of-00003.bin`. The name contains the number of shards, so that a missing one is
detected. Mock tokens, for the first run of a layout without any data, are the same on every machine, and in no file.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpt2train.data.document_split import PARTS, Part, split_documents
from gpt2train.data.indexed import IndexedDataset, TokenDataset, idx_path, shard_name
from gpt2train.data.raw_tokens import is_raw, open_raw, plain_prefix
from gpt2train.data.token_arrays import ConcatenatedArrays
from gpt2train.errors import RunError, UserError
from gpt2train.store.removal import check_no_removal_above

MOCK = "mock:"  # begins the name of mock tokens, as `mock:50257` of a vocabulary of 50,257
DOCUMENTS, MIN_LENGTH, MAX_LENGTH = 2048, 64, 1024
SAMPLE_CHUNKS, CHUNK_TOKENS = 64, 1024  # this many chunks of this many tokens are hashed


def _open_one(prefix: str | Path, by_sequence: bool) -> TokenDataset:
    return open_raw(prefix) if is_raw(prefix) else IndexedDataset(prefix, by_sequence)


def _open_shards(prefixes: Sequence[Path], by_sequence: bool) -> TokenDataset:
    """Open several pairs or raw files as one; lengths and documents take 12 bytes of memory each.

    Raises:
        RunError: the pairs have different dtypes.
    """
    shards = [_open_one(prefix, by_sequence) for prefix in prefixes]
    kinds = {str(shard.tokens.dtype) for shard in shards}
    if len(kinds) > 1:
        raise RunError(f"{prefixes[0]} and its shards have the dtypes {', '.join(sorted(kinds))}; make them again")
    ends = np.cumsum([len(shard) for shard in shards])
    marks = [shard.documents[:-1] + (end - len(shard)) for shard, end in zip(shards, ends, strict=True)]
    return TokenDataset(
        np.concatenate([shard.lengths for shard in shards]),
        np.concatenate([*marks, ends[-1:]]).astype(np.int64),
        ConcatenatedArrays([np.asarray(shard.tokens) for shard in shards]),
    )


def consecutive(dataset: TokenDataset, documents: range) -> TokenDataset:
    """Take consecutive documents as a dataset of their own; no token is copied."""
    first, last = (int(dataset.documents[number]) for number in (documents.start, documents.stop))
    lengths, tokens = dataset.lengths[first:last], dataset.tokens
    start = int(dataset.lengths[:first].sum(dtype=np.int64))
    stop = start + int(lengths.sum(dtype=np.int64))
    part = tokens.part(start, stop) if isinstance(tokens, ConcatenatedArrays) else tokens[start:stop]
    return TokenDataset(lengths, dataset.documents[documents.start : documents.stop + 1] - first, part)


def shard_prefixes(prefix: str | Path) -> list[Path]:
    """List the prefixes of a dataset's pairs: `prefix` itself, or its shards in order.

    A raw file stands for itself, and a pattern such as `fineweb_train_*.bin` for its files in the order of their names.

    Raises:
        UserError: the folder has shards of several datasets with this prefix.
        RunError: a shard is missing.
    """
    base = Path(plain_prefix(prefix))
    if is_raw(base):
        pattern, mark, end = base.name.partition("#")
        files = sorted(base.parent.glob(pattern)) if "*" in pattern else []
        return [Path(f"{file}{mark}{end}") for file in files] or [base]
    if idx_path(base).exists():
        return [base]
    numbered = re.compile(re.escape(base.name) + r"-\d{5}-of-(\d{5})\.idx")
    names = [path.name for path in base.parent.glob("*.idx")] if base.parent.is_dir() else []
    counts = {int(found[1]) for name in names if (found := numbered.fullmatch(name))}
    if not counts:
        return [base]  # opening it raises an error that names the missing file
    if len(counts) > 1:
        raise UserError(f"{prefix} has shards of {len(counts)} datasets ({sorted(counts)} shards); keep one set")
    count = counts.pop()
    shards = [base.with_name(shard_name(base.name, number, count)) for number in range(count)]
    for shard in shards:
        if not idx_path(shard).exists():
            raise RunError(f"{idx_path(shard)} is missing, one of {count} shards; make the tokens again")
    return shards


def open_tokens(
    prefix: str | Path, split: Sequence[float] | None = None, part: Part = "train", *, by_sequence: bool = False
) -> TokenDataset:
    """Open the token dataset of a prefix, one pair or several shards; with weights of a split, one part of it.

    `mock:VOCAB` is no prefix, but mock tokens of a vocabulary.

    Errors are those of `IndexedDataset` and `shard_prefixes`.

    Raises:
        UserError: a removal of pages was interrupted in the output that has the tokens.
    """
    if str(prefix).startswith(MOCK):
        dataset = mock_dataset(str(prefix))
    else:
        check_no_removal_above(prefix)
        prefixes = shard_prefixes(prefix)
        one = len(prefixes) == 1
        dataset = _open_one(prefixes[0], by_sequence) if one else _open_shards(prefixes, by_sequence)
    if split is None:
        return dataset
    return consecutive(dataset, split_documents(len(dataset.documents) - 1, split)[PARTS.index(part)])


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
