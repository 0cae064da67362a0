"""Suffix arrays of a token dataset, in blocks of whole documents, for the search of `gpt2train.data.suffix_search`.

An index is a folder named after the content of the tokens (`tokens_identity`), so that it is found for a file, its
shards or a part of it wherever they are, and never for other tokens. For each block it contains

    block-00000.suffixes    uint32 [tokens]: positions of the block in the order of the suffixes that begin there
    block-00000.keys        bytes [tokens / STRIDE, KEY_TOKENS, width]: first tokens of every STRIDE-th suffix
    block-00000.json        record of the finished block: its documents, its tokens with their hash, and its files
    manifest.json           all records, written last

A suffix ends with its document. It is compared as the bytes of its tokens + 1, big endian, followed by zeros, so that
libdivsufsort, which sorts bytes, gives the order of the tokens; only the positions at the begin of a token are kept.
A token takes 4 bytes for its suffix and 0.06 for the keys, which reduce a search in a block to 8 steps.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpt2train.data.indexed import TokenDataset
from gpt2train.data.sharded_dataset import tokens_identity
from gpt2train.errors import RunError
from gpt2train.extras import needs_extra
from gpt2train.store.files import atomic_file, make_folder, write_atomic, write_error
from gpt2train.store.inner_path import inner_path

VERSION = 1
FOLDER = "token_index"  # beside tokens/ in the output folder of the data steps, or beside the files of a prefix
MANIFEST = "manifest.json"
BLOCK_TOKENS = 1 << 26  # of a block: building takes 25 bytes of memory per token with ids below 65,535
STRIDE, KEY_TOKENS = 256, 8
CHUNK = 1 << 22  # suffixes whose keys are collected at a time


class Block(NamedTuple):
    """Consecutive documents that share a suffix array."""

    first_document: int
    documents: int
    first_token: int
    tokens: int


def index_root(prefix: str | Path) -> Path:
    """Folder of the indexes of the token files with a prefix, without the content's name."""
    base = Path(prefix)
    if base.name == "tokens" and base.parent.parent.name == "tokens":  # OUT/tokens/train/tokens
        return base.parents[2] / FOLDER
    return base.parent / FOLDER


def index_folder(dataset: TokenDataset, root: Path) -> Path:
    """Folder of the index of a dataset under a root."""
    return root / tokens_identity(dataset)[0][:32]


def plan_blocks(bounds: np.ndarray, block_tokens: int = BLOCK_TOKENS) -> Iterator[Block]:
    """Cut documents into blocks: a block ends before the document that would exceed its size."""
    first, total = 0, len(bounds) - 1
    while first < total:
        last = int(np.searchsorted(bounds, bounds[first] + block_tokens, side="right")) - 1
        last = min(max(last, first + 1), total)
        yield Block(first, last - first, int(bounds[first]), int(bounds[last] - bounds[first]))
        first = last


def build_index(
    dataset: TokenDataset,
    root: Path,
    *,
    workers: int = 1,
    block_tokens: int = BLOCK_TOKENS,
    progress: Callable[[int], None] = lambda tokens: None,
) -> Path:
    """Build the index of a dataset, or what an interrupted build has left of it.

    Its bytes depend on the tokens and on `block_tokens` alone.

    Args:
        dataset: tokens.
        root: folder of the indexes.
        workers: blocks that are built at a time.
        block_tokens: size of a block.
        progress: called with the number of tokens of each finished block.

    Returns:
        Folder of the index.

    Raises:
        UserError: the folder cannot be written.
        RunError: the disk is full, or a token is negative.
    """
    folder, bounds = index_folder(dataset, root), dataset.bounds()
    width = _width(dataset, bounds)
    blocks = list(plan_blocks(bounds, block_tokens))
    try:
        make_folder(folder)

        def build(number: int) -> dict[str, Any]:
            record = _build_block(folder, number, blocks[number], dataset, bounds, width)
            progress(blocks[number].tokens)
            return record

        with ThreadPoolExecutor(workers) as executor:
            records = list(executor.map(build, range(len(blocks))))
        manifest = {
            "version": VERSION,
            "identity": tokens_identity(dataset)[0],
            "documents": len(bounds) - 1,
            "tokens": int(bounds[-1]),
            "width": width,
            "stride": STRIDE,
            "key_tokens": KEY_TOKENS,
            "blocks": records,
        }
        write_atomic(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        named = {MANIFEST, *(name for number in range(len(blocks)) for name in _files(number))}
        for file in folder.iterdir():  # of a build with other blocks, or of one that was killed
            if file.name not in named:
                file.unlink()
    except OSError as error:
        raise write_error(folder, error) from error
    return folder


def read_index_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of a finished index; None if there is none, or it has another version.

    Raises:
        UserError: it names a file outside of its folder.
        RunError: a file of the index is missing or has another size than its record.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if manifest["version"] != VERSION:
            return None
        files = [
            (inner_path(name, folder / MANIFEST), size)
            for record in manifest["blocks"]
            for name, size in record["files"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for name, size in files:
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise RunError(f"{path} is missing or damaged; remove {folder} and run gpt2train data index again")
    return manifest


def key_bytes(tokens: np.ndarray, width: int) -> np.ndarray:
    """Bytes by which tokens + 1 are ordered: uint8 [..., width], big endian; the number 0 is the end of a document."""
    return tokens.astype(">u4")[..., None].view(np.uint8)[..., 4 - width :]


def _files(number: int) -> list[str]:
    return [f"block-{number:05d}.{kind}" for kind in ("suffixes", "keys", "json")]


def _width(dataset: TokenDataset, bounds: np.ndarray) -> int:
    """Bytes that every token + 1 fits into.

    Raises:
        RunError: a token is negative.
    """
    largest = -1
    for start in range(0, int(bounds[-1]), CHUNK):
        chunk = dataset.tokens[start : start + CHUNK]
        if int(chunk.min()) < 0:
            raise RunError(f"token {start + int(chunk.argmin()):,} of the file is negative; make the tokens again")
        largest = max(largest, int(chunk.max()))
    return 2 if largest < 2**16 - 1 else 3 if largest < 2**24 - 1 else 4


def _build_block(
    folder: Path, number: int, block: Block, dataset: TokenDataset, bounds: np.ndarray, width: int
) -> dict[str, Any]:
    """Build one block and return its record, or that of an earlier build of the same tokens."""
    suffixes, keys, record_name = _files(number)
    end = block.first_token + block.tokens
    tokens = np.ascontiguousarray(dataset.tokens[block.first_token : end])
    expected = {
        **block._asdict(),
        "width": width,
        "sha256": hashlib.sha256(tokens.astype("<u4").data).hexdigest(),
        "files": {suffixes: 4 * block.tokens, keys: -(-block.tokens // STRIDE) * KEY_TOKENS * width},
    }
    if _recorded(folder / record_name) == expected and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in expected["files"].items()
    ):
        return expected
    ends = bounds[block.first_document + 1 : block.first_document + block.documents + 1] - block.first_token
    order = sort_suffixes(tokens, ends, width)
    with atomic_file(folder / suffixes) as draft:
        order.astype("<u4", copy=False).tofile(draft)
    with atomic_file(folder / keys) as draft:
        _keys(tokens, ends, order[::STRIDE], width).tofile(draft)
    write_atomic(folder / record_name, json.dumps(expected).encode())
    return expected


def _recorded(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def sort_suffixes(tokens: np.ndarray, ends: np.ndarray, width: int) -> np.ndarray:
    """Positions of the tokens of some documents, in the order of the suffixes that begin there: uint32 [tokens].

    Args:
        tokens: [tokens] of all documents.
        ends: [documents] end of each document.
        width: bytes of a token + 1.
    """
    try:
        from pydivsufsort import divsufsort
    except ImportError as error:
        raise needs_extra("an index of tokens", "trace") from error
    if not len(tokens):
        return np.empty(0, dtype=np.uint32)
    # The end of document d comes after its tokens and after the d ends before it.
    marks = ends + np.arange(len(ends))
    spaced = np.empty((len(tokens) + len(ends), width), dtype=np.uint8)
    is_token = np.ones(len(spaced), dtype=bool)
    is_token[marks] = False
    spaced[~is_token] = 0
    spaced[is_token] = key_bytes(tokens.astype(np.uint32) + 1, width)
    original = np.cumsum(is_token, dtype=np.uint32)
    original -= 1
    order = divsufsort(spaced.reshape(-1))
    order = order[order % width == 0]
    order //= width
    order = order[is_token[order]]
    return original[order]


def _keys(tokens: np.ndarray, ends: np.ndarray, positions: np.ndarray, width: int) -> np.ndarray:
    """First `KEY_TOKENS` tokens of suffixes, as bytes: uint8 [suffixes, KEY_TOKENS, width]."""
    found = np.empty((len(positions), KEY_TOKENS, width), dtype=np.uint8)
    for start in range(0, len(positions), CHUNK // KEY_TOKENS):
        part = positions[start : start + CHUNK // KEY_TOKENS].astype(np.int64)
        stop = ends[np.searchsorted(ends, part, side="right")]
        places = part[:, None] + np.arange(KEY_TOKENS)
        values = tokens[np.minimum(places, len(tokens) - 1)].astype(np.int64) + 1
        values[places >= stop[:, None]] = 0
        found[start : start + len(part)] = key_bytes(values, width)
    return found
