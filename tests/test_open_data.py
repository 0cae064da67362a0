"""The data of `tests/data/`: the files whose hashes are listed, all of them described, and small."""

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "data"
MAX_BYTES = 3_000_000


def listed() -> dict[str, str]:
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    return {name.removeprefix("./"): digest for digest, name in map(str.split, lines)}


def test_the_files_have_the_listed_hashes() -> None:
    files = {str(path.relative_to(FOLDER)): path.read_bytes() for path in FOLDER.rglob("*/*") if path.is_file()}
    files = {name: content for name, content in files.items() if "__pycache__" not in name}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == listed()
    assert sum(map(len, files.values())) < MAX_BYTES


def test_complete_files_unpack_to_the_published_ones(open_data: Path) -> None:
    lines = (FOLDER / "whole.sha256").read_text().splitlines()
    whole = {name.removeprefix("./"): digest for digest, name in map(str.split, lines)}
    found = {
        str(path.relative_to(open_data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in open_data.rglob("*")
        if path.is_file()
    }
    changed = {name for name, digest in found.items() if whole[name] != digest}
    assert changed == {"html_docs/html_docs_dev.tar.xz", "text/novels_dev.jsonl.gz", "text/speeches_dev.jsonl.gz"}
