"""Sources other than URL lists: alone, together, through the pipeline; mistakes are found before the start."""

from html import escape
from pathlib import Path

import pytest

from flows.dataprep import dataprep
from flows.settings import DataprepSettings, PipelineSettings, resolve
from gpt2train.errors import UserError
from gpt2train.store.manifest import Folder, need_manifest
from tasks.core.shards import read_rows
from tests.flows.mini_pipeline import Mini, lines_of
from tests.tasks.corpus import pieces_of_novels
from tests.tasks.sources.archives import members, response

AFTER = ["clean", "cloze", "decontaminate", "dedup", "shuffle", "tokenizer", "tokenize"]


def refused(output: Path, **given: object) -> str:
    """The one-line error of the check before the start."""
    with pytest.raises(UserError) as error:
        dataprep.planned(resolve(DataprepSettings, flags={"output": str(output), **given})).check()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_mistakes_are_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "x", "url": "y"}\n')
    (tmp_path / "b.docx").write_text("x")
    (tmp_path / "c.warc").write_text("http://a.example/\n")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for given, said in (
        ({"documents": [f"{tmp_path}/a.jsonl"]}, ["a.jsonl, row 1", "'body', 'url'", "--json-key"]),
        ({"documents": [f"{tmp_path}/none.jsonl"]}, ["none.jsonl", "No such file", "--documents"]),
        ({"documents": [f"{tmp_path}/*.parquet"]}, ["no file matches", "*.parquet", "--documents"]),
        ({"documents": [f"{tmp_path}/b.docx"]}, ["b.docx", ".jsonl", ".parquet", ".html", "rename"]),
        ({"documents": [f"{tmp_path}/empty"]}, ["no file in", "--documents"]),
        ({"warcs": [f"{tmp_path}/c.warc"]}, ["c.warc is not a WARC", "WARC/1.0", "--urls"]),
        ({"warcs": [f"{tmp_path}/*.warc.gz"]}, ["no file matches", "--warcs"]),
        ({"warcs": [f"{tmp_path}/c.warc"], "documents": [f"{tmp_path}/a.jsonl"], "json_key": "body"}, ["c.warc"]),
    ):
        line = refused(out, **given)
        assert all(part in line for part in said), line
    given = {"output": str(out), "documents": [f"{tmp_path}/*.jsonl"], "json_key": "body"}
    dataprep.planned(resolve(DataprepSettings, flags=given)).check()


def test_the_demo_runs_only_without_sources() -> None:
    assert resolve(PipelineSettings).download.allow_private == ("127.0.0.0/8",)
    for source in ("urls", "warcs", "documents"):
        settings = resolve(PipelineSettings, flags={source: ["x"]})
        assert settings.has_source and settings.download.allow_private == ()


def steps_of(stderr: str) -> list[str]:
    known = ["blacklist", "download", "warcs", "webpages", "extract", "texts", *AFTER]
    return [name for name, _ in lines_of(stderr) if name in known]


@pytest.mark.exhaustive
def test_lists_archives_and_texts_are_read_together(mini: Mini, open_data: Path, tmp_path: Path) -> None:
    reviews = pieces_of_novels(open_data, 60)
    pages = [response(n, f"<html><body><p>{escape(text)}</p></body></html>".encode()) for n, text in enumerate(reviews)]
    (tmp_path / "a.warc.gz").write_bytes(members([*pages[:30], b"broken\r\n\r\n"]))
    (tmp_path / "b.warc").write_bytes(b"".join(pages[30:40]))
    (tmp_path / "docs").mkdir()
    for number, text in enumerate(reviews[40:]):
        (tmp_path / "docs" / f"{number:02d}.txt").write_text(text)
    output = tmp_path / "out"
    given = ["--warcs", f"{tmp_path}/*.warc*", "--documents", f"{tmp_path}/docs"]
    done = mini.run("dataprep", *given, "--output", str(output), timeout=290)
    assert done.returncode == 0, done.stderr
    assert steps_of(done.stderr) == ["blacklist", "download", "warcs", "extract", "texts", *AFTER]
    archives = need_manifest(Folder(output / "warcs"))
    assert (archives.outcome.kept, archives.outcome.reasons) == (40, {"broken_record": 1})
    clean = need_manifest(Folder(output / "clean"))
    sources = [row["source"] for found in clean.outputs for row in read_rows(Folder(output / "clean"), found.name)]
    order = list(dict.fromkeys(source if source[0].isalpha() else "docs" for source in sources))
    assert order == ["urls.txt", "a.warc.gz", "b.warc", "docs"]
