"""Settings of the data flow as arms of a comparison."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpt2train.compare.documents import read_corpus
from gpt2train.compare.flow_arms import prepare_arms
from gpt2train.errors import UserError
from tests.gpt2train.compare.test_compare import reviews, write


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
    flow[0].suspend()
    process.kill()
    process.wait()
    assert flow and not psutil.wait_procs(flow, timeout=20)[1]
