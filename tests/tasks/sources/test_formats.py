"""The same texts in every format: both readers of the user's files give them as they are."""

import io
import itertools
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.documents import documents
from tasks.core.input_files import find_inputs
from tasks.sources.text_records import ENDINGS, read_items
from tests.tasks.sources.archives import record
from tests.tasks.sources.text_files import COMPRESSORS

SEPARATOR = "<|sep|>"
# No line ends, which a separator's text loses at its edges, and no byte order mark, which a file loses at its start.
LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029<|>")
TEXTS = st.lists(st.text(LETTERS, min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=6)


def table(texts: list[str]) -> bytes:
    pq.write_table(pa.table({"text": texts}), sink := io.BytesIO())
    return sink.getvalue()


def archive(texts: list[str]) -> bytes:
    with tarfile.open(fileobj=(sink := io.BytesIO()), mode="w") as tar:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


FORMATS = {
    ".jsonl": lambda texts: b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts),
    ".parquet": table,
    ".txt": lambda texts: SEPARATOR.join(texts).encode(),
    ".tar": archive,
    ".wet": lambda texts: b"".join(record("conversion", at, text.encode()) for at, text in enumerate(texts)),
}
PACKED = [*itertools.product(set(FORMATS) - {".parquet"}, COMPRESSORS), (".parquet", "")]


@given(st.sampled_from(sorted(PACKED)), TEXTS)
def test_the_texts_of_every_format_are_equal(
    tmp_path_factory: pytest.TempPathFactory, written: tuple[str, str], texts: list[str]
) -> None:
    kind, packing = written
    path = tmp_path_factory.mktemp("formats") / f"a{kind}{packing}"
    path.write_bytes(COMPRESSORS[packing](FORMATS[kind](texts)))
    if kind != ".wet":
        assert [*documents(path, "text", SEPARATOR)] == texts
    if kind in ENDINGS:
        (file,) = find_inputs([str(path)], "--documents", ENDINGS)
        assert [item.text for item in read_items(file, "text", 2**20, SEPARATOR)] == texts
