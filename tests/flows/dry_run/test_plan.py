"""Dry run of the flows: the printed plan, and the error where resources are missing."""

import json
import shutil
from collections import namedtuple
from fractions import Fraction
from pathlib import Path

import pytest

import flows.dry_run.resources
import flows.pretrain
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.settings import PipelineSettings, PretrainFlowSettings, resolve
from gpt2train.cli import app, run_command
from gpt2train.config.recipe import model_of, shape_of
from gpt2train.model.families import parameter_count
from gpt2train.training.train_state import TrainState
from tasks.ready_tokens.step import ready_tokens
from tests.flows.commands import run
from tests.flows.conftest import Finished
from tests.flows.mini_pipeline import STEPS, hashes
from tests.gpt2train.indexed_writer import IndexedWriter
from tests.tasks.corpus import Inline


def test_an_error_lists_all_missing_resources_and_a_preset_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: namedtuple("usage", "free")(10**9))
    out = tmp_path / "out"
    assert run("pretrain", "--preset", "345m", "--output", str(out)) == 2
    [line] = capsys.readouterr().err.splitlines()
    disk = "disk space (21.3 GB needed"
    for part in ("2 GPUs (none found)", "years on this CPU", "memory (", disk, "tokens (none in"):
        assert part in line
    assert "--preset tiny (the deployment pretrain/tiny)" in line
    assert not out.exists()  # at once
    assert run("pipeline", "--preset", "345m", "--output", str(out)) == 2
    assert "2 GPUs (none found)" in capsys.readouterr().err
    # With the resource check skipped, the missing tokens alone are an error.
    assert run("pretrain", "--preset", "345m", "--output", str(out), "--launch.skip-resource-check") == 1
    assert "holds no finished step" in capsys.readouterr().err


def test_the_plan_of_a_training_is_printed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run("pretrain", "--output", str(tmp_path / "out"), "--dry-run") == 1
    said = capsys.readouterr().out
    for part in (
        "train         to run",
        "tp 1 x pp 1 x dp 2",
        "8 samples per step = micro-batch 4 x 1 x 2",
        "921,600 to train on in 450 steps",
        "60 GFLOP/s per core in fp32",
        f"missing     tokens (none in {tmp_path / 'out'}; run flows.dataprep first)",
    ):
        assert part in said
    assert run("pretrain", "--output", str(tmp_path / "out"), "--dry-run", "--train.epochs", "3") == 1
    said = capsys.readouterr().out
    assert "3 epochs to train on; number available not known yet" in said
    assert "time        not known before the number of tokens is" in said
    assert list(tmp_path.iterdir()) == []
    flags = ["--preset", "345m", "--output", str(tmp_path / "out")]
    assert run("pretrain", *flags, "--dry-run") == 2
    captured = capsys.readouterr()
    assert "20,000 steps" in captured.out and "lacks 2 GPUs (none found), time" in captured.err
    assert run("pretrain", *flags) == 2 and capsys.readouterr().err == captured.err  # what the run would say
    assert run("pretrain", *flags, "--launch.skip-resource-check", "--dry-run") == 1
    assert "holds no finished step" in capsys.readouterr().err


def test_the_epochs_of_a_blend_are_counted_as_the_training_counts_them(tmp_path: Path) -> None:
    for name, documents in (("a", 40), ("b", 30)):
        with IndexedWriter(tmp_path / name, "<u2") as writer:
            for _ in range(documents):
                writer.add([1] * 100)
    blend = f"0.7 {tmp_path / 'a'} 0.3 {tmp_path / 'b'} 0 {tmp_path / 'absent'}"
    train = {"epochs": 2, "model": {"context": 32}, "schedule": {"warmup": 0}}
    given = {"output": str(tmp_path / "out"), "tokens": blend, "vocab": 300, "preset": "tiny", "train": train}
    planned = pretrain.planned(resolve(PretrainFlowSettings, None, given))
    fit = planned.training().fit
    samples = 2 * int(min(3999 // 32 / Fraction(7, 10), 2999 // 32 / Fraction(3, 10)))
    assert fit.steps == -(-samples // 8)
    # And on from where the run is: four steps of 12 samples, with another number of processes.
    assert planned.ready_tokens is not None
    with Inline(workers=1) as runner:
        ready_tokens(planned.root, planned.ready_tokens, runner)
    folder = planned.tokens.run_folder()
    assert folder is not None
    position = TrainState(step=4, samples=48, updates=4, skipped=0).model_dump(mode="json")
    folder.write_bytes("checkpoints/step-00000004/manifest.json", json.dumps({"position": position}).encode())
    fit = planned.training().fit
    assert fit.steps == 4 + -(-(samples - 48) // 8)


@pytest.mark.parametrize(("depth", "vocabulary"), [(2, 4096), (8, 50_257)])
def test_without_tokens_a_recipe_has_the_size_that_gpt2train_plan_says(
    depth: int, vocabulary: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ["--recipe", "modern", "--depth", str(depth)]
    assert run_command(app, ["plan", *recipe, "--cores", "2"]) == 0
    planned = capsys.readouterr().out
    size = f"{parameter_count(shape_of(model_of(depth))):,} parameters"
    assert size in planned and f"vocabulary {vocabulary:,}" in planned
    run("pretrain", *recipe, "--output", str(tmp_path / "out"), "--dry-run")
    said = capsys.readouterr().out
    assert size in said and f"vocabulary {vocabulary:,}" in said


def test_a_published_preset_with_another_vocabulary_warns_with_size_and_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, open_data: Path
) -> None:
    """With a vocabulary trained on the spot 117m is a model of 89 million parameters; it takes GPT-2's by itself."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "a.txt").write_text("a text")
    flags = ["--documents", str(tmp_path / "a.txt"), "--output", str(tmp_path / "out"), "--preset", "117m", "--dry-run"]
    words = ["vocabulary of 4,096 tokens has 88,988,160 parameters", "124,475,904", "give --tokenizer.name gpt2"]
    run("pipeline", *flags)
    said = capsys.readouterr().out
    assert "124,475,904 parameters" in said and "--tokenizer.name" not in said
    assert said.splitlines()[0].split() == ["steps", "tokenizer", "to", "run"]  # before anything is computed
    run("pipeline", *flags, "--tokenizer.name", "train")
    said = capsys.readouterr().out
    assert all(part in said for part in words), said
    run("pipeline", *flags, "--tokenizer.name", "gpt2", "--tokenizer.folder", str(open_data / "bpe"))
    said = capsys.readouterr().out
    assert "124,475,904 parameters" in said and "--tokenizer.name" not in said
    run("pipeline", *flags[:-3], "--preset", "tiny", "--dry-run")
    assert "--tokenizer.name" not in capsys.readouterr().out
    tokenizer = {"vocab_size": 4096}
    output = {"output": str(tmp_path / "out"), "urls": ["a"], "launch": {"skip_resource_check": True}}
    given = {"preset": "117m", "tokenizer": tokenizer} | output
    logged: list[str] = []
    monkeypatch.setattr(flows.pretrain.log, "warning", lambda text, *values: logged.append(text % values))
    pipeline.planned(resolve(PipelineSettings, flags=given)).check_training()
    assert len(logged) == 1 and all(part in logged[0] for part in words)


def test_the_plan_of_a_data_flow_lists_steps_and_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "urls.txt").write_text("http://a.example/1\nhttp://a.example/2\n")
    flags = ["--urls", str(tmp_path / "urls.txt"), "--output", str(tmp_path / "out"), "--dry-run"]
    assert run("dataprep", *flags) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["steps", "blacklist", "to", "run"]
    assert [line.split()[0] for line in said[1:10]] == STEPS[1:10]
    assert "sources     1 URL list, 38 bytes, 2 URLs" in said
    assert [path.name for path in tmp_path.iterdir()] == ["urls.txt"]


def test_a_step_that_would_write_to_the_folder_of_its_inputs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/essay.txt").write_text("mine")
    assert run("dataprep", "--documents", "texts", "--output", ".", "--dry-run") == 2
    assert "texts holds files of yours, such as essay.txt" in capsys.readouterr().err
    assert run("dataprep", "--documents", "texts", "--output", "out", "--dry-run") == 0


def test_finished_steps_are_listed_as_cached_and_a_finished_training_needs_no_resources(
    finished: Finished, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows.dry_run.resources, "missing_resources", lambda fit, train: ["2 GPUs (none found)"])
    config = ["--config", str(finished.mini.folder / "mini.toml"), "--output", str(finished.output), "--dry-run"]
    before = hashes(finished.output)

    def plan(code: int, *more: str) -> tuple[list[str], str]:
        assert run("pipeline", *config, *more) == code
        captured = capsys.readouterr()
        lines = [line for line in captured.out.splitlines() if "cached" in line or "to run" in line]
        return lines, captured.out + captured.err

    steps, said = plan(0)
    assert len(steps) == 14
    # What another test scored with other settings is to be scored again.
    assert [line for line in steps if "cached" not in line and line.split()[0] not in ("evaluate", "report")] == []
    assert "time        none: already trained" in said and "missing     nothing" in said
    # Other settings of the training, or of the data before it: it would train.
    needed = "tiny cannot be trained on this machine, which lacks 2 GPUs (none found)"
    assert needed in plan(2, "--train.seed", "9")[1]
    steps, said = plan(2, "--dedup.threshold", "0.7")
    assert needed in said
    where = next(number for number, line in enumerate(steps) if line.split()[0] == "dedup")
    assert all("cached" in line for line in steps[:where])
    assert steps[where].endswith("to run")
    assert all("unless the steps above give the same output as before" in line for line in steps[where + 1 :])
    assert hashes(finished.output) == before
