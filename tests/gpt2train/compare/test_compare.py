"""`gpt2train compare-data`: intervals, seeds, near-duplicates, settings of the data flow as arms, bad input, kills."""

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gpt2train.compare import documents
from gpt2train.compare.comparison import Comparison, Request, gold_sizes, write_pair
from gpt2train.compare.documents import Corpus, draw_heldout, drop_overlaps, group_corpora, read_corpus
from gpt2train.compare.flow_arms import prepare_arms
from gpt2train.compare.near_duplicates import near_duplicate_groups
from gpt2train.compare.statistics import (
    ERROR_RATE,
    Difference,
    detectable,
    paired_difference,
    seeds_needed,
    sentence,
    student_t,
)
from gpt2train.errors import UserError

WORDS = "the a film was good bad long short story actor plot scene music end time people house river light dark"


def reviews(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS.split(), k=60)) for _ in range(count)]


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def test_quantiles_are_those_of_students_distribution() -> None:
    probabilities = (0.5, 0.6, 0.8, 0.99, 0.999, 0.9999)
    for freedom, probability in itertools.product((1, 2, 3, 9, 99, 1_000, 100_000), probabilities):
        expected = stats.t.ppf(probability, freedom)
        assert student_t(probability, freedom) == pytest.approx(expected, rel=1e-7, abs=1e-12)


def test_the_seeds_part_is_the_paired_t_interval() -> None:
    """With identical differences on all documents the bootstrap adds nothing."""
    shift = np.array([0.3, 0.2, 0.2, 0.3])
    first = np.ones((4, 50)) + shift[:, None]
    found = paired_difference(first, np.ones((4, 50)), np.ones(50))
    low, _ = stats.ttest_rel(shift, np.zeros(4)).confidence_interval(1 - ERROR_RATE)
    assert found.mean == pytest.approx(0.25)
    assert found.mean - found.half_width == pytest.approx(low)
    assert found.better == "B"


def test_intervals_hold_by_simulation() -> None:
    """Equal arms differ in about 2 % of the comparisons, with noise of seeds and of documents."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        noise = rng.normal(0, 0.02, (4, 1)) + rng.normal(0, 0.1, (1, 60))
        first = rng.normal(2, 0.5, (1, 60))
        wrong += paired_difference(first + noise, np.repeat(first, 4, 0), np.ones(60)).better is not None
    assert wrong <= 10


def test_planned_seeds_find_the_difference_in_four_of_five_runs() -> None:
    seeds = seeds_needed(0.02, 0.015)
    assert seeds is not None and detectable(seeds, 0.015) <= 0.02 < detectable(seeds - 1, 0.015)
    drawn = np.random.default_rng(0).normal(0.02, 0.015, (4000, seeds))
    power = float((stats.ttest_1samp(drawn, 0, axis=1).pvalue < ERROR_RATE).mean())
    assert 0.75 <= power <= 0.92
    assert seeds_needed(1e-6, 0.015) is None
    assert (seeds_needed(0.02, 0.015, sets=4) or 0) > seeds


def test_the_verdict_names_winner_and_sets_without_difference() -> None:
    """Sets with a difference come first."""
    found = [("web", Difference(0.021, 0.006, 0, 0, ())), ("news", Difference(-0.001, 0.004, 0, 0, ()))]
    expected = "new better by 0.0210 ± 0.0060 bits per byte on web, no difference on news (-0.0010 ± 0.0040)"
    assert sentence(found, ("old", "new")) == expected


def test_each_seed_has_texts_of_its_own_with_all_copies(tmp_path: Path) -> None:
    texts = reviews(60, 0)
    corpus = read_corpus(write(tmp_path / "a.jsonl", [*texts, *texts[:20]]), "text", "A")
    parts = [corpus.of_seed(seed, 3) for seed in range(3)]
    assert sum(map(len, parts)) == corpus.documents == 80
    assert all(set(parts[i]).isdisjoint(parts[j]) for i in range(3) for j in range(i))
    assert all(part.count(text) == 1 + (text in texts[:20]) for part in parts for text in set(part))


def test_held_out_texts_leave_both_corpora() -> None:
    texts = reviews(60, 0)
    first, second = (Corpus(name, dict.fromkeys(texts, 2)) for name in "AB")
    drawn = draw_heldout(first, second)
    assert len(drawn) == 3 and not set(drawn) & (set(first.copies) | set(second.copies))
    quoting = f"before {' '.join(texts[5].split()[10:23])} after"
    other = Corpus("A", {quoting: 3, "another text": 1})
    drop_overlaps(other, [texts[5]])
    assert (other.dropped, list(other.copies)) == (3, ["another text"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 1}, "one seed gives no interval"),
        ({"tokens": 10_000_000}, "fewer than --tokens 10,000,000"),
        ({"tokens": 9_000}, "--tokens 9,000 are 8 steps of 1,024, fewer than 16"),
        ({"seeds": 50}, "give a larger corpus"),
        ({"tasks": ("core",)}, "core"),
        ({"json_key": "body"}, "no document with a text under 'body'"),
        ({"names": ("old", "old")}, "--names old old: both corpora have the same name"),
    ],
)
def test_bad_requests_are_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    files = [write(tmp_path / f"{name}.jsonl", reviews(200, at)) for at, name in enumerate("ab")]
    request = {"seeds": 2, "proxy": "micro", "jobs": 1} | change
    with pytest.raises(UserError) as caught:
        Comparison(files, tmp_path / "out", Request(**request))  # type: ignore[arg-type]
    assert message in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UserError, match="all of its documents are in the held-out files"):
        Comparison(files, tmp_path / "out", Request(heldout=(files[0],), proxy="micro"))


def test_rows_without_a_text_are_counted(tmp_path: Path) -> None:
    bad = [b'{"body": "b"}', b'{"text": " "}', b'{"text": 3}', b"[" * 9999, b"{"]
    rows = [b'{"text": "a text"}', *bad, b'{"text": "c"}']
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(rows))
    corpus = read_corpus(tmp_path / "a.jsonl", "text", "A")
    assert (set(corpus.copies), corpus.skipped) == ({"a text", "c"}, 5)


def test_a_large_corpus_is_cut_by_the_bytes_of_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of the file: the same texts, each with all of its copies, and the rest is counted."""
    monkeypatch.setattr(documents, "MAX_BYTES", 3000)
    texts = [f"{number} " + "é" * 49 for number in range(60)] * 2  # of 100 or 101 bytes, and half as many characters
    cut = read_corpus(write(tmp_path / "a.jsonl", texts), "text", "A")
    assert 2700 <= sum(len(text.encode()) * copies for text, copies in cut.copies.items()) <= 3000
    assert set(cut.copies.values()) == {2} and cut.documents + cut.over_limit == 120
    for seed in range(5):
        random.Random(seed).shuffle(texts)
        assert read_corpus(write(tmp_path / "b.jsonl", texts), "text", "A").copies == cut.copies


def test_folders_of_a_data_flow_without_tokens_and_tokens_without_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the prefix of the tokens has no folder."""
    write(tmp_path / "documents.jsonl", reviews(3, 0))
    (tmp_path / "clean").mkdir()
    for manifest, message in (
        ("clean/_manifest.json", "is the output of a data flow without tokens/train; run the flow to its end"),
        ("_manifest.json", "is one step of a data flow; give its output folder"),
    ):
        (tmp_path / manifest).write_text("{}")
        with pytest.raises(UserError, match=message):
            read_corpus(tmp_path, "text", "A")
    write_pair(tmp_path / "tokens", [[1, 2], [3]], 10)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="tokens has no tokenizer beside it; put its folder at "):
        read_corpus(Path("tokens"), "text", "A")


@pytest.mark.parametrize(("letters", "shared"), [((0x4E00, 0x9FFF), 13), ((0x0E01, 0x0E2E), 52)], ids=["Han", "Thai"])
def test_overlaps_of_texts_without_spaces(letters: tuple[int, int], shared: int) -> None:
    rng = random.Random(0)

    def drawn(count: int) -> str:
        return "".join(chr(rng.randint(*letters)) for _ in range(count))

    passage = drawn(shared)
    near, same = f"{drawn(80)}{passage[1:]}{drawn(80)}", f"{drawn(80)}{passage}{drawn(80)}"
    corpus = Corpus("A", {near: 1, same: 1})
    drop_overlaps(corpus, [f"{drawn(30)}{passage}{drawn(30)}"])
    assert list(corpus.copies) == [near]


def test_other_data_of_a_task_are_another_comparison(tmp_path: Path) -> None:
    """Also where the sizes of the answers are the same."""
    (tmp_path / "t.toml").write_text('kind = "multiple_choice"\ndata = ["items.jsonl"]\n')
    found = []
    for query in ("one", "two"):
        rows = [{"query": f"{query} {n}", "choices": ["a", "b"], "gold": n % 2} for n in range(6)]
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found.append(gold_sizes(str(tmp_path / "t.toml"), tmp_path, 500))
    assert found[0][0] == found[1][0] == [1] * 6
    assert found[0][1] != found[1][1]


def small_comparison(folder: Path) -> list[str]:
    files = [str(write(folder / f"{name}.jsonl", reviews(1200, at))) for at, name in enumerate("ab")]
    options = ["--proxy", "micro", "--seeds", "2", "--tokens", "16384", "--jobs", "2", "--output", str(folder / "out")]
    return [sys.executable, "-m", "gpt2train", "compare-data", *files, *options]


@pytest.mark.slow
def test_a_killed_comparison_resumes(tmp_path: Path) -> None:
    """No process of it stays, finished trainings are not repeated, and the page of the result loads nothing."""
    command = small_comparison(tmp_path)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (done := list(tmp_path.glob("out/*/results/*.json"))) and process.poll() is None:
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    # Or it has ended by itself, while this process was stopped.
    assert (len(workers) >= 2 or process.returncode == 0) and not psutil.wait_procs(workers, timeout=60)[1]
    before = {file: file.stat().st_mtime_ns for file in done}
    assert before
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pilot: seeds differ by" in finished.stdout and "bits per byte" in finished.stdout
    assert all(file.stat().st_mtime_ns == when for file, when in before.items())
    result = json.loads((tmp_path / "out/result.json").read_bytes())
    assert set(result["sets"]) == {"held-out A", "held-out B"} and result["tokens_per_seed"] == 16384
    page = (tmp_path / "out/page.html").read_text(encoding="utf-8")
    assert result["verdict"] in page and "http" not in page and "<script" not in page


def edited(text: str, number: int) -> str:
    """A copy with another word at the start and in the middle."""
    words = text.split()
    return " ".join([f"new{number}", *words[1:30], f"other{number}", *words[31:]])


def test_edited_copies_share_a_group_and_other_texts_do_not() -> None:
    """Each group is named by its first text, and the order of the texts decides nothing else."""
    texts = reviews(40, 0)
    copies = [edited(text, number) for number, text in enumerate(texts[:20])]
    found = near_duplicate_groups([*texts, *copies])
    assert found == [*range(40), *range(20)]
    order = list(range(60))
    random.Random(1).shuffle(order)
    shuffled = near_duplicate_groups([[*texts, *copies][index] for index in order])
    places = {index: place for place, index in enumerate(order)}
    assert all(shuffled[places[n]] == shuffled[places[40 + n]] for n in range(20))
    assert len(set(shuffled)) == 40


def test_texts_without_spaces_are_compared_by_characters() -> None:
    """Chinese characters in random order, and a copy with two others."""
    rng = random.Random(0)
    texts = ["".join(chr(rng.randrange(0x4E00, 0x5E00)) for _ in range(120)) for _ in range(10)]
    copies = [f"{text[:50]}一{text[51:]}二" for text in texts]
    assert near_duplicate_groups([*texts, *copies]) == [*range(10), *range(10)]
    # Lines are no words. Poems: short lines, in each of which a copy has another character.
    poems = [["".join(chr(rng.randrange(0x4E00, 0x5E00)) for _ in range(15)) for _ in range(20)] for _ in range(10)]
    copies = ["\n".join([f"一{line[1:]}" if at % 3 == 0 else line for at, line in enumerate(poem)]) for poem in poems]
    assert near_duplicate_groups([*map("\n".join, poems), *copies]) == [*range(10), *range(10)]


@given(st.lists(st.text(min_size=1, max_size=60), max_size=12))
def test_any_texts_have_groups_named_by_their_first_text(texts: list[str]) -> None:
    found = near_duplicate_groups(texts)
    assert len(found) == len(texts)
    assert all(name <= index and found[name] == name for index, name in enumerate(found))
    assert all(found[i] == found[texts.index(text)] for i, text in enumerate(texts))


def test_near_duplicates_have_one_seed_and_leave_with_a_held_out_text() -> None:
    """Both corpora together: an edited copy in B of a text of A that is held out is not trained on."""
    texts = reviews(60, 0)
    near = {text: edited(text, number) for number, text in enumerate(texts[:30])}
    first, second = Corpus("A", dict.fromkeys(texts, 1)), Corpus("B", dict.fromkeys([*texts, *near.values()], 1))
    group_corpora([first, second])
    assert (first.near_duplicates, second.near_duplicates) == (0, 30)
    parts = [second.of_seed(seed, 3) for seed in range(3)]
    assert all((text in part) == (copy in part) for text, copy in near.items() for part in parts)
    for part in parts:
        places = {text: place for place, text in enumerate(part)}
        assert all(abs(places[text] - places[copy]) == 1 for text, copy in near.items() if text in places)
    assert all(set(first.of_seed(seed, 3)) <= set(parts[seed]) for seed in range(3))
    drawn = draw_heldout(second, first)
    held = {second.group(text) for text in drawn}
    assert len(held) == len(drawn) == 3
    assert held.isdisjoint(second.group(text) for corpus in (first, second) for text in corpus.copies)


def test_a_corpus_is_its_own_arm_and_takes_no_settings(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", reviews(5, 0))
    assert prepare_arms((file, tmp_path), ((), ()), tmp_path / "out", print) == (file, tmp_path)
    with pytest.raises(UserError, match=r"--b-set dedup\.threshold=0\.5: .* is no settings file"):
        prepare_arms((file, file), ((), ("dedup.threshold=0.5",)), tmp_path / "out", print)
    with pytest.raises(UserError, match=r"there is no settings file .*absent\.toml"):
        prepare_arms((tmp_path / "absent.toml", file), ((), ()), tmp_path / "out", print)
    (tmp_path / "base.toml").write_text('documents = ["a.jsonl"]\n')
    with pytest.raises(UserError, match="--a-set dedup: give KEY=VALUE"):
        prepare_arms((tmp_path / "base.toml", file), (("dedup",), ()), tmp_path / "out", print)


@pytest.mark.exhaustive
def test_flows_share_their_equal_steps_and_are_not_repeated(tmp_path: Path) -> None:
    """The second arm has the documents of the first one's cleaning, and its own deduplication."""
    texts = [f"{text}. {text.title()} again, said number {number}." for number, text in enumerate(reviews(80, 0))]
    documents = write(tmp_path / "texts.jsonl", texts)
    settings = tmp_path / "base.toml"
    settings.write_text(
        f'documents = ["{documents}"]\nlambada = "{write(tmp_path / "lambada.jsonl", texts[:3])}"\nworkers = 1\n'
        '[tokenizer]\nname = "train"\nvocab_size = 300\n[clean]\nmin_tokens = 8\n'
    )
    lines: list[str] = []
    changes = ((), ("shuffle.seed=7",))
    first, second = prepare_arms((settings, settings), changes, tmp_path / "out", lines.append)
    assert [line.startswith("data flow of ") for line in lines] == [True, True] and "shuffle.seed=7" in lines[1]

    def manifest(folder: Path, step: str) -> tuple[str, int]:
        file = folder / step / "_manifest.json"
        return json.loads(file.read_bytes())["fingerprint"], file.stat().st_mtime_ns

    assert manifest(first, "dedup") == manifest(second, "dedup")
    assert manifest(first, "shuffled")[0] != manifest(second, "shuffled")[0]
    assert set(read_corpus(first, "text", "A").copies) == set(read_corpus(second, "text", "B").copies)
    before = [manifest(folder, "tokens") for folder in (first, second)]
    assert prepare_arms((settings, settings), changes, tmp_path / "out", lines.append) == (first, second)
    assert [manifest(folder, "tokens") for folder in (first, second)] == before
    with pytest.raises(UserError, match=r"data flow of .*shuffle\.sed") as caught:
        prepare_arms((settings, settings), ((), ("shuffle.sed=7",)), tmp_path / "out", print)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_killed_comparison_leaves_no_data_flow(tmp_path: Path) -> None:
    """Each process of the flow ends, also one that does not notice by itself that nobody reads its lines."""
    documents = write(tmp_path / "texts.jsonl", [f"{text} said number {i}" for i, text in enumerate(reviews(3000, 0))])
    settings = tmp_path / "base.toml"
    settings.write_text(
        f'documents = ["{documents}"]\nlambada = "{write(tmp_path / "lambada.jsonl", reviews(3, 0))}"\nworkers = 2\n'
        '[tokenizer]\nname = "train"\nvocab_size = 300\n'
    )
    command = [sys.executable, "-m", "gpt2train", "compare-data", str(settings), str(settings)]
    command += ["--b-set", "shuffle.seed=7", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("out/flow-a/*/_batches")) and process.poll() is None:
        time.sleep(0.02)
    flow = psutil.Process(process.pid).children(recursive=True)
    if flow:
        flow[0].suspend()
    process.kill()
    assert (flow or process.wait() == 0) and not psutil.wait_procs(flow, timeout=60)[1]
