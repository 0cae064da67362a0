"""The clean step: repair, length, language, and reasons of rejected documents."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.clean.language import LanguageSettings
from tasks.clean.language_share import detect
from tasks.clean.step import CleanSettings, clean
from tasks.clean.token_counts import count_tokens, tokenizer_file
from tasks.core.runner import Runner
from tasks.core.shards import DOCUMENT, read_rows, write_rows
from tasks.core.step import Step
from tests.tasks.corpus import Inline, rejected_of, rows_of

ENGLISH = "The library waits for the reply of the server, and gives up when the reply does not come in time. " * 8
GERMAN = "Die Bibliothek wartet auf die Antwort des Servers und gibt auf, wenn sie nicht rechtzeitig eintrifft. " * 12
NAMES = list(zip("abcdefghijkl", "mnopqrstuvwx", "ABCDEFGHIJKL", strict=True))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Inline(workers=1) as runner:
        yield runner


def documents(root: Folder, *parts: list[str]) -> Manifest:
    step = Step(root, "extract", version=1, parameters={}, inputs={}, folder="documents")
    records = []
    for number, texts in enumerate(parts):
        rows = [{"id": f"{number}-{i}", "url": f"http://a.example/{i}", "text": t} for i, t in enumerate(texts)]
        records.append(write_rows(step.folder, f"part-{number:05d}.parquet", rows, DOCUMENT))
    count = sum(map(len, parts))
    return step.commit(Outcome(outputs=tuple(records), seen=count, kept=count))


def test_each_reject_reason_is_given(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    mojibake = ENGLISH.replace("library", "café").encode().decode("cp1252")
    digits = "12 34 , " * 100
    manifest = clean(root, documents(root, [ENGLISH, GERMAN], ["too short", digits, mojibake]), CleanSettings(), runner)
    kept, rejected = rows_of(root, manifest), rejected_of(root, manifest)
    assert [row["id"] for row in kept] == ["0-0", "1-2"]
    assert "café" in kept[1]["text"]
    assert [(row["language"], row["split"] in ("train", "valid", "test")) for row in kept] == [("en", True)] * 2
    assert [row["language_share"] for row in kept] == [1, 1]
    assert [row["tokens"] for row in kept] == count_tokens([row["text"] for row in kept])
    assert [(row["reason"], row["detail"]) for row in rejected] == [
        ("wrong_language", "found de, expected en"),
        ("too_short", "2 tokens, at least 128 expected"),
        ("no_language", "found no letters, expected en"),
    ]
    assert manifest.outcome.facts["repaired"] == 1
    assert manifest.outcome.facts["tokens"] == sum(row["tokens"] for row in kept)


ENTITIES = f"Use &lt; to write a less-than sign, and &amp; for an ampersand. {ENGLISH}"


@pytest.mark.parametrize("changed", [False, True])
def test_entities_stay_in_texts_that_a_parser_has_read(tmp_path: Path, changed: bool) -> None:
    """Pages, and the texts of Common Crawl's WET files; texts of other files may still have those of their source."""
    root = Folder(tmp_path)
    records = {}
    for folder, source in (("documents", "urls.txt"), ("texts", "reddit.jsonl"), ("texts", "a.warc.wet.gz")):
        rows = [{"id": source, "url": "u", "text": ENTITIES, "source": source}]
        records[f"{folder}/{source}"] = write_rows(root, f"{folder}/{source}.parquet", rows, DOCUMENT)
    origin = Manifest(
        **{"step": "extract+texts", "version": 1, "fingerprint": "f", "content": "c", "folder": "", "parameters": {}},
        **{"inputs": {}, "outcome": Outcome(outputs=tuple(records.values())), "versions": {}},
    )
    given = origin
    if changed:  # by a step in between, which names its parts by numbers
        step = Step(root, "boilerplate", version=1, parameters={}, inputs={})
        parts = [list(read_rows(root, record.name)) for record in records.values()]
        written = [write_rows(step.folder, f"part-{n:05d}.parquet", rows, DOCUMENT) for n, rows in enumerate(parts)]
        given = step.commit(Outcome(outputs=tuple(written), seen=3, kept=3))
    with Inline(workers=1) as inline:
        manifest = clean(root, given, CleanSettings(), inline, origin=origin)
    found = {row["id"]: row["text"] for row in rows_of(root, manifest)}
    whole = ENTITIES.strip()
    raw = whole.replace("&lt;", "<").replace("&amp;", "&")
    assert found == {"urls.txt": whole, "a.warc.wet.gz": whole, "reddit.jsonl": raw}


def test_any_language_can_be_kept(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    settings = CleanSettings(language=LanguageSettings(keep=("any",)))
    manifest = clean(root, documents(root, [ENGLISH, GERMAN]), settings, runner)
    assert [row["language"] for row in rows_of(root, manifest)] == [None, None]


def test_foreign_parts_are_cut_and_counted(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    mixed = "\n".join([ENGLISH] * 3 + [GERMAN] + [ENGLISH] * 3)
    settings = build(CleanSettings, {"language": {"cut_foreign": True}})
    manifest = clean(root, documents(root, [mixed, ENGLISH, "\n".join([ENGLISH, *[GERMAN] * 4])]), settings, runner)
    cut, whole = rows_of(root, manifest)
    assert 0.6 < cut["language_share"] < 0.95 and whole["language_share"] == 1
    assert cut["text"].count("Bibliothek") <= 2 and cut["text"].count("library") >= 47
    assert [cut["tokens"]] == count_tokens([cut["text"]])
    assert abs(manifest.outcome.facts["foreign_characters"] - (len(mixed) - len(cut["text"]))) < 10  # spaces at ends
    [row] = rejected_of(root, manifest)
    assert row["reason"] == "wrong_language" and "found de, " in row["detail"] and "% en, expected en" in row["detail"]


def test_nothing_is_foreign_where_any_language_is_kept(tmp_path: Path, runner: Runner) -> None:
    """Also if a filter asks for the language."""
    root = Folder(tmp_path)
    mixed = "\n".join([ENGLISH.strip()] * 3 + [GERMAN.strip()] * 3)
    language, filters = {"keep": ["any"], "cut_foreign": True}, {"cleanup": {"tasks": ["remove_512_non_english"]}}
    settings = build(CleanSettings, {"language": language, "filters": filters})
    [row] = rows_of(root, clean(root, documents(root, [mixed]), settings, runner))
    assert row["text"] == mixed
    assert row["language"] in ("en", "de") and row["language_share"] is None


def test_filters_count_by_reason_and_tokens_are_counted_after_filtering(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    sentences = [f"The {a} of the house and the {b} of the town have met with a {c} today." for a, b, c in NAMES]
    prose = "\n".join(sentences * 2)
    menu = "\n".join(["home", "shop", "about us and the rest"] * 30)
    short = "\n".join([*sentences[:6], *(f"no end {a} {b} {c}" for a, b, c in NAMES)])
    fineweb = {"enabled": True, "max_repeated_characters": 1}
    filters = {"c4": {"enabled": True}, "fineweb": fineweb, "pii": {"emails": True}}
    settings = build(CleanSettings, {"filters": filters, "language": {"keep": ["any"]}})
    texts = [prose + "\nWrite to tom@there.org for more.\nlast line", menu, short]
    manifest = clean(root, documents(root, texts), settings, runner)
    [row] = rows_of(root, manifest)
    assert row["text"] == prose + "\nWrite to email@example.com for more."
    assert count_tokens([row["text"]]) == [row["tokens"]]
    assert manifest.outcome.reasons == {"c4_few_sentences": 1, "too_short": 1}
    assert manifest.outcome.facts["masked"] == 1
    assert "masked" not in clean(root, documents(root, [ENGLISH]), CleanSettings(), runner).outcome.facts


def test_the_language_is_detected_for_a_task_that_needs_it(tmp_path: Path, runner: Runner) -> None:
    root = Folder(tmp_path)
    filters = {"cleanup": {"tasks": ["remove_512_non_english"], "short_foreign": 10_000}}
    settings = build(CleanSettings, {"filters": filters, "language": {"keep": ["any"]}})
    manifest = clean(root, documents(root, [ENGLISH, GERMAN]), settings, runner)
    assert [row["language"] for row in rows_of(root, manifest)] == ["en"]
    assert manifest.outcome.reasons == {"short_not_english": 1}


def test_token_counts_equal_those_of_the_published_tokenizer(tmp_path: Path, runner: Runner, open_data: Path) -> None:
    from gpt2train.data.tokenizer import load_tokenizer, read_tables, save_tokenizer

    root = Folder(tmp_path)
    step = Step(root, "tokenizer", version=1, parameters={}, inputs={})
    Path(step.folder.path()).mkdir()
    save_tokenizer(step.folder.path(), *read_tables(open_data / "bpe"))
    tokenizer = step.commit(Outcome(outputs=tuple(step.folder.record(name) for name in step.folder.files())))
    text = ENGLISH + "<|endoftext|> antidisestablishmentarianism"
    manifest = clean(root, documents(root, [text]), CleanSettings(), runner, tokenizer)
    [row] = rows_of(root, manifest)
    ids = load_tokenizer(open_data / "bpe").encode(row["text"], add_special_tokens=False).ids
    assert row["tokens"] == len(ids)
    assert count_tokens([text]) < count_tokens([text], tokenizer_file(root, tokenizer))


def test_the_end_of_a_text_does_not_count_as_a_token(tmp_path: Path, runner: Runner) -> None:
    texts = [" ".join(["word"] * n) for n in (127, 128)]
    root = Folder(tmp_path)
    manifest = clean(root, documents(root, texts), CleanSettings(language=LanguageSettings(keep=("any",))), runner)
    assert [row["tokens"] for row in rows_of(root, manifest)] == [128]
    assert manifest.outcome.reasons == {"too_short": 1}


@pytest.mark.slow
def test_a_sample_gives_the_language_of_the_whole_text(open_data: Path) -> None:
    with gzip.open(open_data / "lang" / "udhr_lang_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file][::12]
    settings = LanguageSettings(detector="langdetect")
    whole = LanguageSettings(detector="langdetect", sample=10_000)
    assert all((detect(t, settings).language == "en") == (detect(t, whole).language == "en") for t in texts)
