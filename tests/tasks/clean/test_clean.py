"""The clean step: repair, length, language, splits, counts of tokens, reject reasons, and reuse of earlier rows."""

import gzip
import hashlib
import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import pytest
import regex
from ftfy.badness import BADNESS_RE
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.data.encoder import Encoded, Texts
from gpt2train.data.text_units import UNSPACED
from gpt2train.data.tokenizer import copy_tokenizer, encode_ordinary, load_tokenizer
from gpt2train.errors import UserError
from gpt2train.settings import build
from gpt2train.store.manifest import MANIFEST, Folder, Manifest, Outcome
from tasks.clean import step as module
from tasks.clean import token_counts
from tasks.clean.language import LanguageSettings
from tasks.clean.repair import fix_clean_line, fix_simple_text, fix_text, is_bad, is_repaired, repair
from tasks.clean.splits import SplitSettings, split_of
from tasks.clean.step import CleanSettings, clean
from tasks.clean.token_counts import PRE_TOKENIZER, count_pieces, count_tokens
from tasks.core.runner import Runner
from tasks.core.shards import DOCUMENT, read_rows, write_rows
from tasks.core.step import Step
from tasks.core.tokenizer_file import TokenizerFile, encoder_of, tokenizer_file
from tests.tasks.corpus import (
    Inline,
    extracted,
    pieces_of_novels,
    real_texts,
    rejected_of,
    rows_of,
    shards_of,
    texts_of,
)

ENGLISH = "The library waits for the reply of the server, and gives up when the reply does not come in time. " * 8
GERMAN = "Die Bibliothek wartet auf die Antwort des Servers und gibt auf, wenn sie nicht rechtzeitig eintrifft. " * 12
NAMES = list(zip("abcdefghijkl", "mnopqrstuvwx", "ABCDEFGHIJKL", strict=True))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Inline(workers=1) as runner:
        yield runner


def documents(root: Folder, *parts: list[str]) -> Manifest:
    rows = [
        [{"id": f"{number}-{i}", "url": f"http://a.example/{i}", "text": text} for i, text in enumerate(texts)]
        for number, texts in enumerate(parts)
    ]
    return extracted(root, *rows)


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
        ("no_language", "found no words, expected en"),
    ]
    assert manifest.outcome.facts["repaired"] == 1
    assert manifest.outcome.facts["tokens"] == sum(row["tokens"] for row in kept)


ENTITIES = f"Use &lt; to write a less-than sign, and &amp; for an ampersand. {ENGLISH}"


@pytest.mark.parametrize("changed", [False, True])
def test_entities_stay_in_texts_that_a_parser_has_read(tmp_path: Path, changed: bool, runner: Runner) -> None:
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
        parts = [list(read_rows(root, record.name)) for record in records.values()]
        given = shards_of(root, parts, "boilerplate", DOCUMENT)
    manifest = clean(root, given, CleanSettings(), runner, origin=origin)
    found = {row["id"]: row["text"] for row in rows_of(root, manifest)}
    whole = ENTITIES.strip()
    raw = whole.replace("&lt;", "<").replace("&amp;", "&")
    assert found == {"urls.txt": whole, "a.warc.wet.gz": whole, "reddit.jsonl": raw}


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
    """Also if a filter asks for the language, which is not detected otherwise."""
    root, language = Folder(tmp_path), {"keep": ["any"], "cut_foreign": True}
    mixed = "\n".join([ENGLISH.strip()] * 3 + [GERMAN.strip()] * 3)
    for filters, known in (({"cleanup": {"tasks": ["remove_512_non_english"]}}, ("en", "de")), ({}, (None,))):
        settings = build(CleanSettings, {"language": language, "filters": filters})
        [row] = rows_of(root, clean(root, documents(root, [mixed]), settings, runner))
        assert row["text"] == mixed
        assert row["language"] in known and row["language_share"] is None


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
    filters = {"cleanup": {"tasks": ["remove_512_non_english"], "short_foreign": 10_000}}
    settings = build(CleanSettings, {"filters": filters, "language": {"keep": ["any"]}})  # detected for the task alone
    manifest = clean(root, documents(root, [ENGLISH, GERMAN]), settings, runner)
    assert [row["language"] for row in rows_of(root, manifest)] == ["en"]
    assert manifest.outcome.reasons == {"short_not_english": 1}


def test_token_counts_equal_those_of_the_published_tokenizer(tmp_path: Path, runner: Runner, open_data: Path) -> None:
    root = Folder(tmp_path)
    step = Step(root, "tokenizer", version=1, parameters={}, inputs={})
    Path(step.folder.path()).mkdir()
    copy_tokenizer(open_data / "bpe", Path(step.folder.path()))
    tokenizer = step.commit(Outcome(outputs=tuple(step.folder.record(name) for name in step.folder.files())))
    text = ENGLISH + "<|endoftext|> antidisestablishmentarianism"
    manifest = clean(root, documents(root, [text]), CleanSettings(), runner, tokenizer)
    [row] = rows_of(root, manifest)
    ids = load_tokenizer(open_data / "bpe").encode(row["text"], add_special_tokens=False).ids
    assert row["tokens"] == len(ids)
    assert count_tokens([text]) < count_tokens([text], tokenizer_file(root, tokenizer))


def test_the_end_of_a_text_does_not_count_as_a_token(tmp_path: Path, runner: Runner) -> None:
    root, texts = Folder(tmp_path), [" ".join(["word"] * n) for n in (127, 128)]
    manifest = clean(root, documents(root, texts), CleanSettings(language=LanguageSettings(keep=("any",))), runner)
    assert [row["tokens"] for row in rows_of(root, manifest)] == [128]
    assert manifest.outcome.reasons == {"too_short": 1}


SHARES = st.tuples(st.floats(0, 0.5), st.floats(0, 0.49))


@given(st.text(), st.integers(0, 2**63 - 1), SHARES, st.floats(0, 0.9), st.floats(0, 0.9))
def test_the_split_is_a_function_of_text_and_seed_and_a_larger_test_share_only_adds_documents(
    text: str, seed: int, shares: tuple[float, float], one: float, other: float
) -> None:
    settings = SplitSettings(seed=seed, valid=shares[0], test=shares[1])
    split = split_of(text, settings)
    assert split == split_of(text, settings.model_copy())
    assert split in {"train"} | {name for name, share in zip(("valid", "test"), shares, strict=True) if share > 0}
    small, large = sorted((one, other))
    if split_of(text, SplitSettings(valid=0, test=small)) == "test":
        assert split_of(text, SplitSettings(valid=0, test=large)) == "test"


def test_shares_are_met_and_depend_on_the_seed() -> None:
    # Frozen: a change here would move documents of finished runs between the splits.
    assert [split_of(f"document {n}", SplitSettings()) for n in (9, 10, 41)] == ["train", "valid", "test"]
    texts = [f"document {n}" for n in range(20_000)]
    counts = Counter(split_of(text, SplitSettings()) for text in texts)
    assert counts["test"] == pytest.approx(1000, abs=120)  # 4 standard deviations
    assert counts["valid"] == pytest.approx(1000, abs=120)
    both = sum(split_of(text, SplitSettings()) == split_of(text, SplitSettings(seed=1)) == "test" for text in texts)
    assert both == pytest.approx(50, abs=30)

    with pytest.raises(UserError, match="leave no documents to train on"):
        build(SplitSettings, {"valid": 0.5, "test": 0.5})


# GPT-2's pre-tokenizer as OpenAI published it.
PIECES = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

ASCII = st.characters(max_codepoint=127)


@pytest.fixture
def gpt2(open_data: Path, tmp_path: Path) -> TokenizerFile:
    copy_tokenizer(open_data / "bpe", tmp_path)
    return TokenizerFile(Folder(tmp_path), "tokenizer.json", "of gpt2")


# Unassigned characters (Cn) are classed by the version of Unicode, which differs between the two libraries.
SPACED = st.characters(codec="utf-8", exclude_categories=("Cn",)).filter(lambda letter: not UNSPACED.match(letter))


@given(st.text(SPACED, max_size=200) | st.text(ASCII, max_size=60))
def test_pieces_equal_those_of_gpt2(text: str) -> None:
    assert count_pieces(text) == len(PIECES.findall(text)) == len(PRE_TOKENIZER.pre_tokenize_str(text))


def test_each_letter_of_a_script_without_spaces_is_a_piece() -> None:
    counts = {"今天天气很好。": 7, "他说：“走吧！”": 5, "ใช้ iPhone 12": 5, "한국어는 띄어쓰기가": 2}
    assert {text: count_pieces(text) for text in counts} == counts


@pytest.mark.slow
def test_token_counts_of_real_texts_are_exact(open_data: Path, gpt2: TokenizerFile) -> None:
    texts = texts_of(open_data / "text" / "speeches_dev.jsonl.gz", 60)
    texts += texts_of(open_data / "lang" / "udhr_lang_dev.jsonl.gz", 200)[::5]
    texts += ["<|endoftext|>", "", "a\u0300 \n\n x"]
    ids = encode_ordinary(load_tokenizer(open_data / "bpe"), texts)
    assert count_tokens(texts, gpt2) == [len(found) for found in ids]
    assert [count_tokens([text], gpt2)[0] for text in texts[-3:]] == [len(found) for found in ids[-3:]]


def test_a_fast_library_that_disagrees_is_not_used(gpt2: TokenizerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = encoder_of(gpt2, "tokenizers")

    def one_too_many(texts: Texts) -> Encoded:
        found = plain(texts)
        lengths = found.lengths.copy()
        lengths[1] += 1  # of one text of the sample
        return Encoded(np.append(found.ids, 0), lengths)

    monkeypatch.setattr(token_counts, "encoder_of", lambda _, engine: plain if engine == "tokenizers" else one_too_many)
    monkeypatch.setattr(token_counts, "MIN_FAST", 1)
    texts = [f"number {n} of many" for n in range(40)]
    assert count_tokens(texts, gpt2) == plain(Texts.of(texts)).lengths.tolist()


SETTINGS = {"language": {"cut_foreign": True}, "filters": {"pii": {"emails": True}}}
NUMBERED = [f"The document {number} says this. {ENGLISH}" for number in range(6)]
TEXTS = [
    *NUMBERED,
    *(GERMAN, "too short", "12 34 , " * 100, ENGLISH.replace("library", "café").encode().decode("cp1252")),
    "\n".join([ENGLISH] * 3 + [GERMAN] + [ENGLISH] * 3),
    f"{ENGLISH} Write to someone@example.org, or from 192.0.2.17.",
]


def addressed(root: Folder, shards: Sequence[Sequence[tuple[str, str]]]) -> Manifest:
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
    urls: list[str] = []
    original = module.clean_rows

    def counted(rows: Any, *args: Any) -> Iterator[Any]:
        urls.extend(row["url"] for row in rows)
        return original(rows, *args)

    monkeypatch.setattr(module, "clean_rows", counted)
    return urls


def files_of_run(root: Folder, shards: Sequence[Sequence[tuple[str, str]]], settings: Any = None) -> dict[str, bytes]:
    clean(root, addressed(root, shards), build(CleanSettings, SETTINGS if settings is None else settings), Inline(1))
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
    files_of_run(Folder(tmp_path / "out"), first)
    cleaned.clear()
    found = files_of_run(Folder(tmp_path / "out"), new)
    known = {text for shard in first for _, text in shard}
    assert len(cleaned) == sum(text not in known for shard in new for _, text in shard)
    assert found == files_of_run(Folder(tmp_path / "scratch"), new)
    manifest = json.loads(files_of_run(Folder(tmp_path / "all"), [[("u", text) for text in TEXTS]])[MANIFEST])
    assert "foreign_characters" in manifest["outcome"]["facts"]


@pytest.mark.slow
def test_rows_of_other_settings_are_not_taken(
    tmp_path: Path, cleaned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", TEXTS[0]), ("b", TEXTS[6])]
    files_of_run(Folder(tmp_path / "kept"), [rows])

    def count(settings: Any = None) -> int:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(tmp_path / "kept", tmp_path / "out")
        cleaned.clear()
        found = files_of_run(Folder(tmp_path / "out"), [[*rows, ("c", TEXTS[1])]], settings)
        taken = len(cleaned)
        assert found == files_of_run(Folder(tmp_path / "scratch"), [[*rows, ("c", TEXTS[1])]], settings)
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


SIGNS = "\u00a0\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026"
# Patterns that ftfy repairs: mojibake, entities, tags, ligatures, full width, control characters, line ends, accents.
TRICKY = st.sampled_from(
    [*SIGNS, *"aZ9 .&;<>é\n\r\f\x1bÃ¢€™œÂ\u0301ﬁＡ\ufeff\x85\u2028\ud83d\ude00\u02bc", "&amp;", "â€™"]
)


@given(st.text(max_size=100) | st.lists(TRICKY, max_size=30).map("".join), st.booleans(), st.booleans(), st.booleans())
def test_the_fast_path_equals_ftfy(text: str, straight: bool, keep_width: bool, entities: bool) -> None:
    html = "auto" if entities else False
    theirs = ftfy.fix_text(text, unescape_html=html, uncurl_quotes=straight, fix_character_width=not keep_width)
    assert fix_text(text, straight_quotes=straight, keep_width=keep_width, entities=entities) == theirs


PLAIN, ODD = list("aZ .,\n"), sorted({letter for letter in BADNESS_RE.pattern if not letter.isascii()})
PIECE = st.text(st.sampled_from(PLAIN), max_size=40) | st.text(st.sampled_from(PLAIN + ODD), max_size=6)


@given(st.lists(PIECE, max_size=6).map("".join))
def test_mojibake_is_recognised_as_by_ftfy(text: str) -> None:
    assert is_bad(text) == ftfy.is_bad(text)


def test_separators_and_joiners_of_words_are_kept() -> None:
    asian = ("ភាសា\u200bខ្មែរ\u200bគឺ", "ภาษา\u200bไทย", "ພາສາ\u200bລາວ", "မြန်မာ\u200bဘာသာ", "བོད་སྐད་ནི།")
    for text in (*asian, "می\u200cخواهم", "क्\u200dष", "👩\u200d🔬"):
        assert repair(text, entities=True) == repair(text, entities=False) == text


def test_chinese_and_japanese_punctuation_is_kept() -> None:
    for text in ("他说：“走吧！”，（对吗？）GPT-2的第１步。", "「ｶﾅ」と、ｷﾞﾀｰ！"):
        assert repair(text) == text
    assert repair("The ＧＰＵ “中” ﬁts！") == 'The GPU "中" fits!'
    both = {
        "He said “go”！ &lt;": 'He said "go"! <',
        "他说：“我们走吧！”，ＯＫ。 &lt;": "他说：“我们走吧！”，ＯＫ。 <",
        "A lesson of Chinese, in “two” languages <1>": 'A lesson of Chinese, in "two" languages <1>',
        "“好的好的”！ &lt;": "“好的好的”！ &lt;",
    }
    assert repair("\n".join(both)) == "\n".join(both.values())
    assert repair("他说：走吧！\r\n“对\x00吗？” ") == "他说：走吧！\n“对吗？”"


def test_signs_that_are_never_mojibake_are_repaired_as_by_ftfy() -> None:
    """No rule of ftfy's spans more than five characters; those of four and five need letters that are no such signs."""
    for signs in itertools.product(SIGNS + "aZ9 .\n", repeat=3):
        text = "".join(signs)
        assert fix_simple_text(text, True) == ftfy.fix_text(text)


def test_each_single_character_is_repaired_as_by_ftfy() -> None:
    for code in itertools.chain(range(0x3400), range(0xAC00, 0xAC20), range(0xD7F0, 0xE010), range(0xF8F0, 0x10010)):
        line = f"ab {chr(code)} c"
        fixed = fix_simple_text(line, True) or fix_clean_line(line, True)
        assert fixed is None or fixed == ftfy.fix_text(line), hex(code)


def test_the_fast_path_equals_ftfy_on_real_texts(open_data: Path) -> None:
    """The answers are ftfy's, and most texts need no more than the fast way."""
    passages = texts_of(open_data / "lang" / "udhr_lang_dev.jsonl.gz", 700)[::5]
    texts = passages + real_texts(open_data) + pieces_of_novels(open_data, 330)
    for text in texts:
        assert fix_text(text) == ftfy.fix_text(text)
    assert sum(fix_simple_text(text, True) is not None for text in texts) > 0.7 * len(texts)


def test_the_test_cases_of_ftfy_pass(open_data: Path) -> None:
    """ftfy's own cases: texts that it must repair, and texts that it must not change."""
    for name in ("in-the-wild", "negative"):
        cases: list[dict[str, Any]] = json.loads((open_data / "lang" / "ftfy_cases" / f"{name}.json").read_text())
        assert len(cases) > 10
        for case in cases:
            assert fix_text(case["original"]) == ftfy.fix_text(case["original"])
            if case["expect"] == "pass":
                assert fix_text(case["original"]) == case["fixed"], case["label"]


@pytest.mark.slow
def test_real_mojibake_is_repaired(real_data: Path) -> None:
    with gzip.open(real_data / "lang" / "mojibake_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    repaired = sum(repair(row["garbled"]) == repair(row["original"]) for row in rows)
    assert repaired >= 0.98 * len(rows)  # the rest lost characters in the damage
    for row in rows[:300]:
        lines = [line.rstrip() for line in row["original"].strip().split("\n")]
        assert repair(row["original"], straight_quotes=False) == "\n".join(lines)


@given(st.text(max_size=200) | st.text(st.sampled_from("ab \t\n\0\ud800é\xa0\r"), max_size=60))
def test_repaired_text_is_storable_and_stable(text: str) -> None:
    fixed = repair(text)
    fixed.encode()
    assert "\0" not in fixed
    assert all(line == line.rstrip(" \t\xa0") for line in fixed.split("\n"))


def test_a_text_without_faults_is_kept_and_lines_of_word_processors_stay_apart() -> None:
    for text in (
        *("    if x:\n\treturn 10^6\n\n\n    y = 1", "　　第一段。\n　　第二段。", "A palavra do dia é «MAÇÃ»."),
        *("O título é “IRMÃ” em maiúsculas, “HÂLÂ” e „ALBÓ“.", "LA LIBERTÉ¹ ET L’ÉGALITÉ²."),
        *("ATÉ AMANHÃ\u00a0DE MANHÃ", "a\u2060b «Ã»"),
    ):
        assert repair(text, straight_quotes=False) == text
    assert repair("one\vtwo\x0c\nthree") == "one\ntwo\x0c\nthree"
    assert repair("\n \t\n  one\n") == "  one"


def test_a_text_counts_as_repaired_if_mojibake_was_fixed() -> None:
    for text, repaired in {"cafÃ©": True, **dict.fromkeys(("café", "plain", "“curly”", "ﬁne"), False)}.items():
        assert is_repaired(text, repair(text)) == repaired, text
