"""Raw token files without an index: those of nanoGPT (`train.bin`) and llm.c (also modded-nanogpt's).

| file | header | tokens | a document |
|---|---|---|---|
| nanoGPT | none | uint16 | ends with the end-of-text id |
| llm.c, GPT-2 | 256 int32: magic 20240520, version 1, number of tokens | uint16 | begins with it |
| llm.c, Llama 3 | 256 int32: magic 20240801, version 7, number of tokens | uint32 | begins with it |

They are named with their ending: `train.bin`, or `train.bin#ID` for another end-of-text id than that of GPT-2 (50256)
and Llama 3 (128000).
"""

import glob
import re
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from gpt2train.data.indexed import TokenDataset, idx_path, map_array
from gpt2train.errors import LFS_POINTER, RunError, UserError, check_no_pointer

SUFFIX = ".bin"
HEADER_BYTES = 4 * 256
# First bytes of other files that are named `.bin`, whose headers would be read as tokens.
OTHERS = {
    b"\x93NUMPY": "a file of numpy.save",
    b"LITPKDS": "a packed file of lit-gpt",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b\x08\x00": "packed by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
}
CHUNK = 1 << 24  # tokens searched at a time
NAME = re.compile(r"(.*\.bin)(?:#(\d{1,9}))?", re.DOTALL)


class Layout(NamedTuple):
    """Layout of a raw file."""

    dtype: np.dtype[Any]
    offset: int  # bytes before the tokens
    begins: bool  # a document begins with the end-of-text id; else it ends with it
    end: int  # end-of-text id by default


NANOGPT = Layout(np.dtype("<u2"), 0, False, 50256)
# Magic and version of llm.c -> layout.
LLMC = {
    (20240520, 1): Layout(np.dtype("<u2"), HEADER_BYTES, True, 50256),
    (20240801, 7): Layout(np.dtype("<u4"), HEADER_BYTES, True, 128000),
}


def open_raw(prefix: str | Path) -> TokenDataset:
    """Memory-map a raw token file, each sequence of which is a document; errors as of `IndexedDataset`."""
    path, end = _parts(prefix)
    if not path.is_file():
        raise UserError(f"{path} does not exist; check the path")
    layout, count = _layout(path)
    status = path.stat()
    bounds = _bounds(path, layout, count, layout.end if end is None else end, status.st_size, status.st_mtime_ns)
    return TokenDataset(np.diff(bounds), np.arange(len(bounds)), map_array(path, layout.dtype, count, layout.offset)[0])


def is_raw(prefix: str | Path) -> bool:
    """Return True for the name of a raw file, or a pattern of such names: no index belongs to it."""
    name, base = str(prefix), Path(prefix)
    if NAME.fullmatch(name) is None or plain_prefix(name) != name:
        return False
    return not idx_path(name).is_file() and not any(base.parent.glob(f"{glob.escape(base.name)}-*-of-*.idx"))


def plain_prefix(prefix: str | Path) -> str:
    """Return the prefix of a pair of which one file is given, `x` for `x.bin` and `x.idx`; any other name as it is."""
    name = str(prefix)
    stem = name.removesuffix(SUFFIX).removesuffix(".idx")
    return stem if stem != name and idx_path(stem).is_file() and not idx_path(name).is_file() else name


def with_end(prefix: str, end: int) -> str:
    """Return the name of a raw file whose documents have this end-of-text id, unless its name has one."""
    path, given = _parts(prefix)
    file = next(iter(sorted(path.parent.glob(path.name))), None) if "*" in path.name else path
    if given is not None or file is None or not file.is_file() or _layout(file)[0].end == end:
        return prefix
    return f"{prefix}#{end}"


def _parts(prefix: str | Path) -> tuple[Path, int | None]:
    """Path of a raw file, and the end-of-text id in its name."""
    found = NAME.fullmatch(str(prefix))
    assert found is not None
    return Path(found[1]), None if found[2] is None else int(found[2])


def _layout(path: Path) -> tuple[Layout, int]:
    """Layout of a file, and its number of tokens.

    Raises:
        UserError: it has no whole number of tokens, or another version.
        RunError: it is truncated.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(len(LFS_POINTER))
        other = next((kind for start, kind in OTHERS.items() if first.startswith(start)), "")
        if len(first) > 8 and _is_chunk(file, size):
            other = "a chunk of litData or MosaicML"
    check_no_pointer(first, path)
    if other:
        raise UserError(f"{path} is {other}, whose header would be tokens; write its tokens by array.tofile")
    head = np.frombuffer(first[:12], dtype="<i4").tolist() if size >= HEADER_BYTES else []
    if head and any(head[0] == magic for magic, _ in LLMC):
        layout = LLMC.get((head[0], head[1]))
        if layout is None:
            raise UserError(f"{path} has version {head[1]} of llm.c's format; only 1 (GPT-2) and 7 (Llama 3) are known")
        expected = HEADER_BYTES + head[2] * layout.dtype.itemsize
        if size != expected:
            raise RunError(f"{path} is truncated or damaged: {size:,} bytes, {expected:,} by its header; make it again")
        return layout, head[2]
    if size % NANOGPT.dtype.itemsize:
        raise UserError(f"{path} has {size:,} bytes, which are no tokens of two bytes; give a pair of .bin and .idx")
    if _is_wide(path):
        remedy = "each would be two; give a pair of .bin and .idx"
        raise UserError(f"{path} seems to have tokens of four bytes, of which {remedy}")
    return NANOGPT, size // NANOGPT.dtype.itemsize


def _is_wide(path: Path) -> bool:
    """Return True if every second one of the first ids is as small as the upper half of a wider one."""
    ids = np.fromfile(path, NANOGPT.dtype, 512)
    return len(ids) >= 128 and bool((ids[1::2] < 4).all() and (ids[::2] >= 4).any())


def _is_chunk(file: IO[bytes], size: int) -> bool:
    """Return True if a file begins with a number of samples and their offsets, the last of which is its size."""
    file.seek(0)
    count, first = np.frombuffer(file.read(8), "<u4").tolist()
    file.seek(4 * (count + 1))
    return bool(first == 4 * (count + 2) and file.read(4) == size.to_bytes(8, "little")[:4])


@lru_cache(maxsize=64)
def _bounds(path: Path, layout: Layout, count: int, end: int, size: int, changed: int) -> np.ndarray:
    """First token of each document, and the end of the last one: int64 [documents + 1]."""
    tokens = map_array(path, layout.dtype, count, layout.offset)[0]
    found = [
        start + np.flatnonzero(tokens[start : start + CHUNK] == end) + (not layout.begins)
        for start in range(0, count, CHUNK)
    ]
    inner = np.concatenate([np.empty(0, dtype=np.int64), *found])
    return np.concatenate(([0], inner[(inner > 0) & (inner < count)], [count] if count else [])).astype(np.int64)
