"""Reuse of earlier rows by the cleaning: the bytes of a run from scratch, whatever came, went, changed or moved."""

import hashlib
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpt2train.settings import build
from gpt2train.store.manifest import MANIFEST, Folder, Manifest
from tasks.clean import step as module
from tasks.clean.step import CleanSettings, clean
from tests.tasks.clean.test_clean import ENGLISH, GERMAN
from tests.tasks.corpus import Inline, extracted

SETTINGS = {"language": {"cut_foreign": True}, "filters": {"pii": {"emails": True}}}
NUMBERED = [f"The document {number} says this. {ENGLISH}" for number in range(6)]
TEXTS = [
    *NUMBERED,
    *(GERMAN, "too short", "12 34 , " * 100, ENGLISH.replace("library", "café").encode().decode("cp1252")),
    "\n".join([ENGLISH] * 3 + [GERMAN] + [ENGLISH] * 3),
    f"{ENGLISH} Write to someone@example.org, or from 192.0.2.17.",
]


def documents(root: Folder, shards: Sequence[Sequence[tuple[str, str]]]) -> Manifest:
    """Documents as URL and text; other columns follow from the URL."""
    rows = [
        [
            {"id": hashlib.md5(f"{url} {text}".encode()).hexdigest(), "url": url, "text": text, "title": url[::-1]}
            for url, text in shard
        ]
        for shard in shards
    ]
    return extracted(root, *rows)


@pytest.fixture
def cleaned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """URLs of the documents that are cleaned, not reused."""
    urls: list[str] = []
    original = module.clean_rows

    def counted(rows: Any, *args: Any) -> Iterator[Any]:
        urls.extend(row["url"] for row in rows)
        return original(rows, *args)

    monkeypatch.setattr(module, "clean_rows", counted)
    return urls


def run(root: Folder, shards: Sequence[Sequence[tuple[str, str]]], settings: Any = None) -> dict[str, bytes]:
    """Clean, and return all files; of the manifest, what does not depend on the folder's history is all of it."""
    clean(root, documents(root, shards), build(CleanSettings, SETTINGS if settings is None else settings), Inline(1))
    folder = root / "clean"
    return {name: folder.read_bytes(name) for name in folder.files()}


def drawn(draw: random.Random, count: int) -> list[list[tuple[str, str]]]:
    rows = [(f"http://a.example/{draw.randrange(50)}", draw.choice(TEXTS)) for _ in range(count)]
    cuts = sorted(draw.randrange(count) for _ in range(2))
    return [rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))])
def test_any_change_gives_the_bytes_of_a_run_from_scratch(tmp_path: Path, cleaned: list[str], seed: int) -> None:
    """Kept, rejected, repaired, cut and masked documents, by the facts of the manifest too."""
    draw = random.Random(seed)
    first, new = drawn(draw, 15), drawn(draw, 15)
    new[0] += first[2][:4]
    run(Folder(tmp_path / "out"), first)
    cleaned.clear()
    found = run(Folder(tmp_path / "out"), new)
    known = {text for shard in first for _, text in shard}
    assert len(cleaned) == sum(text not in known for shard in new for _, text in shard)
    assert found == run(Folder(tmp_path / "scratch"), new)
    manifest = json.loads(run(Folder(tmp_path / "all"), [[("u", text) for text in TEXTS]])[MANIFEST])
    assert "foreign_characters" in manifest["outcome"]["facts"]


@pytest.mark.slow
def test_rows_of_other_settings_or_tokenizers_are_not_taken(
    tmp_path: Path, cleaned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", TEXTS[0]), ("b", TEXTS[6])]
    run(Folder(tmp_path / "kept"), [rows])

    def count(settings: Any = None) -> int:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(tmp_path / "kept", tmp_path / "out")
        cleaned.clear()
        found = run(Folder(tmp_path / "out"), [[*rows, ("c", TEXTS[1])]], settings)
        taken = len(cleaned)
        assert found == run(Folder(tmp_path / "scratch"), [[*rows, ("c", TEXTS[1])]], settings)
        shutil.rmtree(tmp_path / "scratch")
        return taken

    assert count() == 1
    assert count({**SETTINGS, "min_tokens": 3}) == 3
    assert count({**SETTINGS, "filters": {}}) == 3
    make = module.Step
    for change in ({"version": 99}, {"packages": ("numpy",)}):
        with monkeypatch.context() as patch:
            patch.setattr(module, "Step", lambda *args, change=change, **options: make(*args, **{**options, **change}))
            assert count() == 3
    with monkeypatch.context() as patch:  # as another tokenizer, or another file of a filter
        patch.setattr(module, "filter_files", lambda settings: {"quality": b"another"})
        assert count() == 3
