"""Samples and steps that have read the pages of a removal, and the settings that go on before them."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.settings import PretrainFlowSettings, resolve
from gpt2train.config import CONFIG_FILE, read_run_config, to_toml
from gpt2train.config.data import Corpus
from gpt2train.data.epoch import Epoch
from gpt2train.data.samples import Samples
from gpt2train.data.sharded_dataset import open_tokens, tokens_identity
from gpt2train.errors import UserError
from gpt2train.monitoring.run_record import CorpusNote, RunRecord
from gpt2train.store.manifest import Folder, Outcome
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.core.forgotten import Forgotten, url_hash
from tasks.core.shards import read_rows
from tasks.core.step import Step
from tasks.outputs.forget.command import _print, _run_lines, forget
from tasks.outputs.forget.plan import Removal, plan_removal
from tasks.outputs.forget.remove import remove_pages
from tasks.outputs.forget.training import RunReading, find_runs, read_by, write_settings
from tasks.shuffle.step import ShuffleSettings, shuffle
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.tasks.corpus import Inline, documents_of, row
from tests.tasks.outputs.forget.corpus import write_run

CONTEXT, BATCH, STEPS = 16, 4, 30
ROWS = [row(f"Chapter {n}: {'a fox and a wolf ' * (n % 5 + 1)}.", f"http://a.test/{n}") for n in range(30)]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 6),
    st.none() | st.integers(0, 3),
    st.sets(st.integers(0, 11)),
)
def test_samples_of_documents_hold_their_tokens(
    lengths: list[int], context: int, seed: int | None, chosen: set[int]
) -> None:
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    epoch = Epoch.build(bounds, context, seed, 0)
    documents = [number for number in sorted(chosen) if number < len(lengths) and lengths[number]]
    expected = {
        sample
        for number in documents
        for token in range(bounds[number], bounds[number + 1])
        for sample in epoch.containing(token, token + 1).tolist()
    }
    assert epoch.of_documents(bounds[documents]).tolist() == sorted(expected)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of 30 documents, and a run that has made 30 steps on them, with checkpoints."""
    out = tmp_path_factory.mktemp("training") / "out"
    root = Folder(out)
    write_tokens(root, ROWS)
    write_run(out, CONTEXT, BATCH, STEPS)
    return out


def write_tokens(root: Folder, rows: list[dict[str, Any]]) -> None:
    with Inline(workers=1) as runner:
        shuffled = shuffle(root, documents_of(root, rows), ShuffleSettings(), runner)
        words = tokenizer(root, shuffled, TokenizerSettings(vocab_size=300), runner)
        tokenize(root, shuffled, words, TokenizeSettings(), runner)


@pytest.fixture
def run(out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(out / "runs/tiny-0123abcd", tmp_path / "runs/tiny-0123abcd"))


def wanted_of(*numbers: int) -> Forgotten:
    return Forgotten(urls=tuple(sorted(url_hash(f"https://a.test/{number}") for number in numbers)))


def page_read_late(run: Path) -> int:
    """The first page that a run has read after a checkpoint."""
    return next(number for number in range(30) if read_by(run, wanted_of(number)).checkpoint)


def test_steps_are_those_whose_samples_hold_the_documents(out: Path) -> None:
    """Compared with the samples of the training's own loader, token by token."""
    [run] = find_runs(Folder(out), None)
    samples = Samples(out / "tokens/train/tokens", CONTEXT, 300, 7)
    positions, _ = samples.locate(range(STEPS * BATCH))
    table = {row["url"]: row for row in read_rows(Folder(out / "tokens"), "train/documents.parquet")}
    for numbers in ((3,), (5, 17), (29,)):
        reading = read_by(run, wanted_of(*numbers))
        tokens = [np.arange(table[url]["start"], table[url]["end"]) for url in (f"http://a.test/{n}" for n in numbers)]
        holding = np.flatnonzero(np.isin(positions, np.concatenate(tokens)).any(axis=1))
        assert reading.documents == len(numbers)
        assert list(reading.first_samples) == holding.tolist() and reading.samples == len(holding)
        assert list(reading.first_steps) == sorted({sample // BATCH for sample in holding.tolist()})
        before = reading.first_steps[0] // 2 * 2
        assert reading.checkpoint == (f"step-{before:08d}" if before else None)
        assert len(reading.later) == (STEPS - before) // 2
    assert read_by(run, wanted_of(99)).steps == 0


def test_the_steps_of_a_moved_output_are_known(out: Path, tmp_path: Path) -> None:
    [run] = find_runs(Folder(out), None)
    shutil.copytree(out, tmp_path / "first")
    config = read_run_config(run / CONFIG_FILE)
    first = tmp_path / "first/runs" / run.name
    places = {"data": config.data.model_copy(update={"train": str(tmp_path / "first/tokens/train/tokens")})}
    (first / CONFIG_FILE).write_text(to_toml(config.model_copy(update=places | {"output": str(first)})))
    moved = (tmp_path / "first").rename(tmp_path / "second") / "runs" / run.name
    reading = read_by(moved, wanted_of(3), Folder(tmp_path / "second"))
    assert reading == read_by(run, wanted_of(3)).model_copy(update={"run": str(moved)})
    assert reading.later


def test_the_settings_go_on_from_the_checkpoint(out: Path, run: Path, tmp_path: Path) -> None:
    reading = read_by(run, wanted_of(3)).model_copy(update={"checkpoint": "step-00000020", "first_steps": (20,)})
    path = write_settings(reading)
    assert path is not None
    settings = resolve(PretrainFlowSettings, str(path))
    assert settings.data == str(out) and settings.output == str(tmp_path)
    assert settings.train.checkpoints.init_from == f"{run}/checkpoints/step-00000020"
    assert (settings.train.steps, settings.train.schedule.warmup) == (20, 19)
    assert settings.train.model.hidden == 32 and settings.train.seed == 7
    assert write_settings(reading.model_copy(update={"checkpoint": None})) is None
    # A second removal: checkpoints after that of the first one have read the pages of the first one.
    for checkpoint, expected in (("step-00000026", "20"), ("step-00000010", "10")):
        write_settings(reading.model_copy(update={"checkpoint": checkpoint}))
        first = resolve(PretrainFlowSettings, str(path)).train.checkpoints.init_from
        assert first == f"{run}/checkpoints/step-000000{expected}"


@pytest.mark.parametrize("before", ["step-00000020", None])
def test_checkpoints_that_have_read_the_pages_are_removed(run: Path, tmp_path: Path, before: str | None) -> None:
    names = [path.name for path in list_checkpoints(run)]
    kept = names[: names.index(before) + 1] if before else []
    (run / "checkpoints/best").write_text(f"{names[-2]}\n")
    reading = RunReading(run=str(run), steps=1, checkpoint=before, later=tuple(names[len(kept) :]))
    plan = Removal(targets=("http://a.test/3",), wanted=wanted_of(3), runs=(reading,), delete_checkpoints=True)
    for _ in range(2):  # again, as after a kill
        remove_pages(Folder(tmp_path), plan)
        assert [path.name for path in list_checkpoints(run)] == kept
        assert {path.name for path in (run / "checkpoints").iterdir()} == {*kept, *(["latest"] if kept else [])}
    if before:
        assert newest_checkpoint(run).name == before
        assert (run / "forget.toml").is_file()


def begun_from(out: Path, source: Path, run: Path) -> Path:
    """Write a run of one step that began from weights of another."""
    copied = Path(shutil.copytree(out / "runs/tiny-0123abcd", run, ignore=shutil.ignore_patterns("step-*", "cache")))
    config = (copied / CONFIG_FILE).read_text().replace(f'output = "{out}/runs/tiny-0123abcd"', f'output = "{run}"')
    assert "init_from" not in config and str(run) in config
    (copied / CONFIG_FILE).write_text(config.replace("[checkpoints]", f'[checkpoints]\ninit_from = "{source}"'))
    (copied / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": BATCH * CONTEXT}) + "\n")
    (copied / "checkpoints/step-00000001").mkdir()
    (copied / "checkpoints/step-00000001/manifest.json").write_text("{}")
    return copied


@pytest.mark.parametrize("chain", [1, 2])
def test_weights_that_had_read_the_pages_are_inherited(out: Path, tmp_path: Path, chain: int) -> None:
    """A run that has not read them itself, but began from a checkpoint of one that had, directly or by another."""
    [first] = find_runs(Folder(out), None)
    page = page_read_late(first)
    reading = read_by(first, wanted_of(page))
    cases = (
        (first / "checkpoints" / str(reading.checkpoint), False),
        (first / "checkpoints" / reading.later[0], True),
        (first / "model", True),
        (first, True),
        (tmp_path / "elsewhere/model", False),
    )
    for case, (source, inherits) in enumerate(cases):
        folder = tmp_path / str(case)
        folder.mkdir()
        run = source
        for number in range(chain):
            begun = begun_from(out, run, folder / str(number))
            run = begun / "checkpoints/step-00000001"
        alone = read_by(begun_from(out, Path("none"), folder / "alone"), wanted_of(page))
        found = read_by(begun, wanted_of(page))
        assert found.inherited == (str(first) if inherits else "")
        assert found.steps == alone.steps
        if inherits:
            assert found.checkpoint is None and found.later == ("step-00000001",)
            assert write_settings(found) is None
            lines = _run_lines(found, delete=False)
            assert f"began from weights of {first}, which had read the pages" in "\n".join(lines)
            assert "train again from other weights" in lines[-1]


def test_a_model_merged_from_a_later_checkpoint_is_removed(run: Path, tmp_path: Path) -> None:
    for folder in ("model", "merge"):
        (run / folder).mkdir()
        (run / folder / "x").write_text("weights")
    page = page_read_late(run)
    reading = read_by(run, wanted_of(page))
    assert reading.merged and f"model merged from a checkpoint: {run}/model" in "\n".join(_run_lines(reading, False))
    folder = "runs/tiny-0123abcd"
    step = Step(Folder(tmp_path), "train", version=1, parameters={}, inputs={}, folder=folder, shared=True)
    for name, is_merged in ((str(reading.checkpoint), False), (reading.later[-1], True)):
        step.commit(Outcome(outputs=(step.folder.record(f"checkpoints/{name}/manifest.json"),)))
        assert read_by(run, wanted_of(page)).merged == is_merged
    plan = Removal(targets=("http://a.test/3",), wanted=wanted_of(page), delete_checkpoints=True)
    remove_pages(Folder(tmp_path), plan.model_copy(update={"runs": (read_by(run, wanted_of(page)),)}))
    assert not (run / "model").exists() and not (run / "merge").exists() and (run / CONFIG_FILE).exists()


def test_tokens_outside_of_the_output_are_named(out: Path, tmp_path: Path, memory: str) -> None:
    """Of a mixture, and those copied from an object store, with which a training does not go on."""
    run = find_runs(Folder(out), None)[0]
    page = page_read_late(run)
    assert read_by(run, wanted_of(page), Folder(out)).outside == ()
    assert read_by(run, wanted_of(page), Folder(tmp_path)).outside == (str(out),)
    Step(Folder(tmp_path), "blacklist", version=1, parameters={}, inputs={}, folder="urls").commit(Outcome())
    plan = plan_removal(Folder(tmp_path), [f"http://a.test/{page}"], str(run))
    assert plan.runs[0].outside == (str(out),) and not plan.found.steps
    assert f"reads tokens with the pages in {out}: forget them there too" in "\n".join(_run_lines(plan.runs[0], False))

    shutil.copytree(out / "tokens", tmp_path / "local/inputs/0a1b/tokens")
    copied = Path(shutil.copytree(run, tmp_path / "local/runs/tiny-0123abcd"))
    config = (copied / CONFIG_FILE).read_text().replace(f"{out}/tokens", f"{tmp_path}/local/inputs/0a1b/tokens")
    (copied / CONFIG_FILE).write_text(config)
    fsspec.filesystem("memory").put(f"{out}/tokens/", "/forget-runs/tokens/", recursive=True)
    reading = read_by(copied, wanted_of(page), Folder(memory))
    assert reading.outside == (str(tmp_path / "local"),) and reading.data == memory
    path = write_settings(reading)
    assert path is not None and resolve(PretrainFlowSettings, str(path)).data == memory
    # A removal of the copies comes after it, and does not know where they are from.
    own = read_by(copied, wanted_of(page), Folder(tmp_path / "local"))
    assert (own.outside, own.data) == ((), "")
    for data in (memory, str(tmp_path / "local/inputs/0a1b")):
        path = write_settings(own)
        assert path is not None and resolve(PretrainFlowSettings, str(path)).data == data
        path.unlink()


def test_steps_on_tokens_that_were_made_again_are_not_known(out: Path, tmp_path: Path) -> None:
    """Those of a removal before have other documents, or are gone; those of another corpus of a mixture are known."""
    page = next(number for number in range(30) if read_by(find_runs(Folder(out), None)[0], wanted_of(number)).steps)
    copy = Path(shutil.copytree(out, tmp_path / "out"))
    run = write_recorded(copy, tmp_path, [copy, out])
    before = read_by(run, wanted_of(page))
    assert before.documents == 2 and before.steps and not before.note
    root, kept = Folder(copy), [one for one in ROWS if one["url"] != "http://a.test/29"]
    shutil.rmtree(copy / "tokens")
    reading = read_by(run, wanted_of(page))
    assert reading.documents == 1 and 0 < reading.samples < before.samples and reading.steps
    assert "has no table of the train documents" in reading.note
    assert f"not known of all its tokens: {copy}/tokens has no table" in "\n".join(_run_lines(reading, False))
    write_tokens(root, kept)
    reading = read_by(run, wanted_of(page))
    assert reading.steps == 0 and reading.checkpoint is None
    assert reading.note.startswith(f"{copy}/tokens/train/tokens has other tokens than those that it was trained on")
    assert read_by(run, wanted_of(29)).note == ""  # it is in none of the new tokens


def write_recorded(out: Path, folder: Path, outputs: list[Path]) -> Path:
    [run] = find_runs(Folder(out), None)
    prefixes = [f"{output}/tokens/train/tokens" for output in outputs]
    config = read_run_config(run / CONFIG_FILE)
    corpora = tuple(Corpus(prefix=prefix) for prefix in prefixes)
    changed = config.model_copy(update={"data": config.data.model_copy(update={"train": corpora})})
    (run / CONFIG_FILE).write_text(to_toml(changed))
    identities = [tokens_identity(open_tokens(prefix))[0] for prefix in prefixes]
    notes = zip(prefixes, identities, strict=True)
    data = tuple(CorpusNote(prefix=prefix, identity=name, tokens=1, share=0.5) for prefix, name in notes)
    (run / "run.json").write_text(RunRecord(data=data).model_dump_json())
    return run


def test_a_tokenizer_trained_on_the_pages_is_named_and_can_be_kept(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = out / "runs" / "tiny-0123abcd"
    reading = read_by(run, wanted_of(page_read_late(run)))
    _print(Folder(out), Removal(targets=(), wanted=Forgotten(), removed=("tokenizer",), runs=(reading,)))
    assert f"copy {out}/tokenizer before --yes" in capsys.readouterr().out
    kept = tokenizer(Folder(tmp_path), None, TokenizerSettings(name="folder", folder=f"{out}/tokenizer"), Inline())
    for record in kept.outputs:
        assert (tmp_path / kept.folder / record.name).read_bytes() == (out / "tokenizer" / record.name).read_bytes()


def test_a_run_elsewhere_is_said_not_to_be_searched(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = out / "runs" / "tiny-0123abcd"
    outside = shutil.copytree(inside, tmp_path / "elsewhere")
    roundabout = Path(f"{out}/../../{tmp_path.name}/elsewhere")  # its parts begin with the output
    assert out.parents[1] == tmp_path.parent
    for run, is_said in ((inside, False), (outside, True), (roundabout, True)):
        forget(("http://a.test/3",), output=str(out), run=str(run))
        assert ("its own files are not searched" in capsys.readouterr().out) == is_said


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://forget-runs"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/forget-runs", recursive=True)


def test_a_run_is_found_by_name_or_path(out: Path, tmp_path: Path) -> None:
    root = Folder(out)
    assert find_runs(root, "tiny-0123abcd") == find_runs(Folder("memory://none"), str(out / "runs/tiny-0123abcd"))
    with pytest.raises(UserError, match="there is no run other"):
        find_runs(root, "other")
    config = (out / "runs/tiny-0123abcd" / CONFIG_FILE).read_text()
    (tmp_path / CONFIG_FILE).write_text(config.replace("/train/", "/x/"))
    assert "x" in read_by(tmp_path, wanted_of(1)).note
