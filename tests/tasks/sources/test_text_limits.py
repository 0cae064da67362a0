"""Memory of the texts step: decompression bombs, long lines, and large pages of Parquet files."""

import bz2
import gzip
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.data.parquet_column import ROWS

# VmHWM, not ru_maxrss: that of a new process begins with the memory of the process that started it.
MEMORY = """
import pathlib, re, sys
from tasks.sources.documents import find_documents
from tasks.sources.texts import TextsSettings, texts_part
from gpt2train.store.folder import Folder
def peak():
    return int(re.search("VmHWM: *\\t* *([0-9]+)", pathlib.Path("/proc/self/status").read_text()).group(1))
before = peak()
found = find_documents([sys.argv[1]], "text", 2**24)
outcome = texts_part(Folder(sys.argv[2]), "part-00000", found.texts, "text", TextsSettings())
print(outcome.kept, dict(outcome.reasons), peak() - before)
"""


def opened(path: Path, packing: str) -> Any:
    if packing == "zst":
        return pa.CompressedOutputStream(str(path), "zstd")
    return {"gz": gzip, "bz2": bz2, "xz": lzma}[packing].open(path, "wb")


FAST_BOMBS = [("gz", "jsonl"), ("zst", "txt")]  # each kind and each library once
REST = [("zst", "jsonl"), ("xz", "txt"), ("gz", "txt"), ("bz2", "jsonl"), ("bz2", "txt"), ("xz", "jsonl")]


@pytest.mark.parametrize("bombs", [FAST_BOMBS, pytest.param(REST, marks=pytest.mark.exhaustive)], ids=["fast", "rest"])
def test_long_lines_are_rejected_and_not_held_in_memory(tmp_path: Path, bombs: list[tuple[str, str]]) -> None:
    """Lines of 300 MB: one of NULs, sparse on disk, between two others, and bombs packed to less than 2 MB."""
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/long.jsonl").open("wb") as sparse:
        sparse.write(b'{"text": "before"}\n{"text": "')
        sparse.seek(300 * 2**20)
        sparse.write(b'"}\n{"text": "after"}\n')
    for packing, kind in bombs:
        bomb = tmp_path / "in" / f"bomb.{kind}.{packing}"
        with opened(bomb, packing) as file:
            file.write(b'{"text": "first"}\n{"text": "')
            for _ in range(300):
                file.write(b"x" * 10**6)
        assert bomb.stat().st_size < 2 * 10**6
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    first = sum(kind == "jsonl" for _, kind in bombs)  # a text file is one document
    assert done.stdout.startswith(f"{2 + first} {{'too_large': {1 + len(bombs)}}} ")
    grown = int(done.stdout.split()[-1])
    assert grown < 150 * 1024, f"{grown / 1024:.0f} MB"


@pytest.mark.exhaustive
def test_many_keys_take_bounded_memory(tmp_path: Path) -> None:
    """Nine lines of 2 MB with distinct keys, none of them the text key, then a good one."""
    with (tmp_path / "keys.jsonl").open("w") as file:
        for line in range(9):
            file.write("{" + ",".join(f'"{line}-{n}":0' for n in range(200_000)) + "}\n")
        file.write('{"text": "good"}\n')
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "keys.jsonl"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 {'no_text': 9} ")
    grown = int(done.stdout.split()[-1])
    assert grown < 180 * 1024, f"{grown / 1024:.0f} MB"


BOMB = """
import resource, sys
from tasks.sources.text_records import parquet_items
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = [(item.reason, len(item.text)) for item in parquet_items(sys.argv[1], "text", 2**20)]
print(len(found), sorted({str(reason) for reason, _ in found}))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def unpacked(bomb: Path) -> tuple[str, int]:
    """Items that another process reads from a Parquet file, and the megabytes by which it grows."""
    assert bomb.stat().st_size < 2**17
    command = [sys.executable, "-c", BOMB, str(bomb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, grown = done.stdout.splitlines()
    return said, int(grown)


@pytest.mark.exhaustive
def test_a_repeated_text_in_a_parquet_file_takes_little_memory(tmp_path: Path) -> None:
    """One text of 16 MiB that a thousand rows repeat: 1 kB of file, 16 GB of texts."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 2**24]))
    bomb, limit = tmp_path / "bomb.parquet", 2**30
    options = {"compression": "zstd", "dictionary_pagesize_limit": limit, "store_schema": False}
    pq.write_table(pa.table({"text": column}), bomb, **options)
    said, grown = unpacked(bomb)
    assert said == "1000 ['too_large']"
    assert grown < 600


@pytest.mark.exhaustive
@pytest.mark.parametrize("megabytes", [300, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_a_large_page_of_a_parquet_file_takes_little_memory(tmp_path: Path, megabytes: int) -> None:
    """A text in one plain page, 10 to 60 kB of file, behind rows that can be used."""
    bomb = tmp_path / "bomb.parquet"
    plain = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(bomb, plain, compression="zstd", use_dictionary=False, write_statistics=False) as writer:
        writer.write_table(pa.table({"text": ["before"] * ROWS}))
        page = pa.py_buffer(bytes(megabytes * 2**20))
        offsets = pa.py_buffer(np.array([0, page.size], dtype=np.int32))
        writer.write_table(pa.table({"text": pa.StringArray.from_buffers(1, offsets, page)}))
    said, grown = unpacked(bomb)
    assert said == f"{ROWS + 1} ['None', 'too_large']"
    assert grown < 600
