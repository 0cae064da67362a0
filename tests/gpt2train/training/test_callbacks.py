"""Callbacks: when they are called and with what, stops, errors, the setting, and docs/develop/add-a-callback.md."""

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.config.callbacks import CALLBACKS, CallbackSpec
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_record import EarlyStop, read_record
from gpt2train.parallel.mesh import DistContext
from gpt2train.runs.reading import read_run
from gpt2train.settings import Settings
from gpt2train.store.run_folder import last_step, newest_checkpoint
from gpt2train.train import train
from gpt2train.training.callbacks import Callback, RunView
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import finish, make, start, with_lr, write
from tests.tasks.plugin_page import ROOT, files_of, install

SPOILED_RANK = Path(__file__).parent / "spoiled_rank.py"
EVENTS = ("begin", "step", "validation", "save", "end")


class Recorder(Callback):
    calls: ClassVar[list[tuple[str, RunView]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in EVENTS:
            return super().__getattribute__(name)

        def note(run: RunView) -> None:
            assert name != "save" or (run.checkpoint is not None and (run.checkpoint / "manifest.json").is_file())
            Recorder.calls.append((name, run))

        return note


class Failing(Callback):
    event, error = "step", ValueError("two\nlines")

    def __getattribute__(self, name: str) -> Any:
        if name == Failing.event:
            raise Failing.error
        return super().__getattribute__(name)


class Uncreated(Callback):
    def __init__(self, options: Settings) -> None:
        raise OSError("no such file")


class StopAtOptions(Settings):
    at: int = Field(4, ge=1)


class StopAt(Callback):
    options: StopAtOptions

    def step(self, run: RunView) -> None:
        if run.state.step == self.options.at:
            run.stop("it is the step")


@pytest.fixture(autouse=True)
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CALLBACKS, "_entries", dict(CALLBACKS._entries))
    monkeypatch.setattr(Recorder, "calls", [])
    for name, kind in (("recorder", Recorder), ("failing", Failing)):
        CALLBACKS.register(name, CallbackSpec(f"{__name__}:{kind.__name__}"))
    CALLBACKS.register("stop_at", CallbackSpec(f"{__name__}:StopAt", StopAtOptions))
    CALLBACKS.register("uncreated", CallbackSpec(f"{__name__}:Uncreated"))
    CALLBACKS.register("nowhere", CallbackSpec(f"{__name__}:nowhere"))
    CALLBACKS.register("no_class", CallbackSpec(f"{__name__}:EVENTS"))
    yield


def test_events_come_in_order_with_state_and_metrics(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", steps=12, callbacks=["recorder"], checkpoints={"async_save": False})
    train(config, alone)
    calls = Recorder.calls
    names = [name for name, _ in calls]
    assert names[0] == "begin" and names[-1] == "end" and names.count("begin") == names.count("end") == 1
    steps = [run for name, run in calls if name == "step"]
    assert [run.state.step for run in steps] == list(range(1, 13))
    rows = read_metrics(config.output)
    assert [dict(run.row) for run in steps] == rows
    checked = [run for name, run in calls if name == "validation"]
    assert [(run.state.step, "valid_loss" in run.row) for run in checked] == [(10, True), (12, True)]
    saved = [run.checkpoint for name, run in calls if name == "save"]
    assert [path.name for path in saved if path] == ["step-00000010", "step-00000012"]
    last = calls[-1][1]
    assert last.checkpoint == newest_checkpoint(config.output) and last.state.step == 12
    assert (last.rank, last.world, last.config) == (0, 1, config)
    assert sum(parameter.numel() for part in last.model_parts for parameter in part.parameters()) > 1000
    begun = calls[0][1]
    assert begun.state.step == 0 and not begun.row and begun.checkpoint is None
    assert read_run_config(Path(config.output) / CONFIG_FILE).callbacks == ("recorder",)


@pytest.mark.exhaustive
def test_a_run_that_a_callback_stops_is_finished_until_the_callbacks_change(
    tokens: Path, tmp_path: Path, alone: DistContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gpt2train")
    config = make(tokens, tmp_path / "run", steps=12, callbacks=["stop_at", "recorder"])
    assert train(config, alone).step == 5
    assert newest_checkpoint(config.output).name == "step-00000005"
    assert Recorder.calls[-1][0] == "end"
    stop = EarlyStop(step=5, reason="callback stop_at: it is the step", callbacks=["stop_at", "recorder"])
    for _ in range(2):  # the same command again
        record = read_record(config.output)
        assert record is not None and record.early_stop == stop and last_step(config.output, 12) == 5
        assert read_run(Path(config.output)).state == "finished"
        assert caplog.messages[-2] == "finished at step 5 of 12: callback stop_at: it is the step"
        assert train(config, alone).step == 5
    later = config.model_copy(update={"callbacks": {"stop_at": {"at": 7}}})
    assert train(later, alone).step == 8
    assert train(later.model_copy(update={"callbacks": ()}), alone).step == 12
    record = read_record(config.output)
    assert record is not None and record.early_stop is None and last_step(config.output, 12) == 12
    assert [row["step"] for row in read_metrics(config.output)] == list(range(1, 13))
    plain = make(tokens, tmp_path / "plain", steps=12)
    train(plain, alone)
    assert "callbacks" not in (Path(plain.output) / CONFIG_FILE).read_text()
    assert [row["loss"] for row in read_metrics(plain.output)] == [row["loss"] for row in read_metrics(config.output)]


def test_a_stop_in_the_last_step_but_one_is_no_early_stop(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", steps=5, callbacks=["stop_at"])
    train(config, alone)
    record = read_record(config.output)
    assert record is not None and record.early_stop is None


def test_options_come_from_tables_and_have_defaults(tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", callbacks={"recorder": {}, "stop_at": {"at": "3"}})
    assert config.callbacks == {"recorder": {}, "stop_at": {"at": 3}}
    assert make(tokens, tmp_path / "run", callbacks={"stop_at": {}}).callbacks == {"stop_at": {"at": 4}}
    assert make(tokens, tmp_path / "run", callbacks="stop_at").callbacks == ("stop_at",)  # of a flag
    assert read_run_config(write(config)) == config


@pytest.mark.parametrize("event", EVENTS)
def test_an_error_is_one_line_that_names_the_callback(
    event: str, tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "event", event)
    config = make(tokens, tmp_path / "run", steps=6, callbacks=["recorder", "failing"], checkpoints={"interval": 3})
    with pytest.raises(RunError) as caught:
        train(config, alone)
    line = str(caught.value)
    assert line.startswith(f"callback failing failed in {event} at step ")
    assert line.endswith(" on rank 0 (ValueError: two lines); correct it, or leave it out of callbacks")
    done = [row["step"] for row in read_metrics(config.output)]
    assert len(done) == {"begin": 0, "step": 2}.get(event, len(done))
    if done:  # the last step is saved
        assert newest_checkpoint(config.output).name == f"step-{done[-1]:08}"


def test_a_users_error_stays(tokens: Path, tmp_path: Path, alone: DistContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "event", "begin")
    monkeypatch.setattr(Failing, "error", UserError("set TARGET; it is missing"))
    with pytest.raises(UserError, match=r"^callback failing: set TARGET; it is missing$"):
        train(make(tokens, tmp_path / "run", callbacks=["failing"]), alone)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["unknown"], r"callbacks: there is no callback 'unknown'; choose from"),
        ({"stop_at": {"att": 3}}, r"callbacks: callback stop_at: unknown setting 'att'; did you mean 'at'\?$"),
        ({"stop_at": {"at": 0}}, r"callbacks: callback stop_at: at: input should be greater than or equal to 1"),
        ({"recorder": {"at": 3}}, r"callback recorder: unknown setting 'at'; leave it out, there are no such"),
        ({"stop_at": 3}, r"callbacks: give a list of names, or a table \[callbacks.NAME\] of options for each$"),
        ([3], r"callbacks: give a list of names, or a table"),
        (["recorder", "recorder"], r"callbacks: recorder is there twice; leave one out"),
        (["uncreated"], r"callback uncreated cannot be created \(OSError: no such file\); correct or leave it out"),
        (["nowhere"], r"cannot import .*:nowhere"),
        (["no_class"], r"callback no_class: .*:EVENTS is not a subclass of Callback"),
    ],
)
def test_wrong_callbacks_fail(names: Any, message: str, tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    with pytest.raises(UserError, match=message) as caught:
        train(make(tokens, tmp_path / "run", callbacks=names), alone)
    assert "\n" not in str(caught.value)


def test_an_error_on_one_rank_ends_all(tokens: Path, tmp_path: Path) -> None:
    config = make(tokens, tmp_path / "run", steps=8)
    run_ranks(SPOILED_RANK, write(config), "callback", "0")
    for rank in (0, 1):
        line = Path(f"{config.output}.rank-{rank}").read_text()
        assert line.startswith("callback failing failed in step at step 3 on rank 1 (KeyError: 'lost')"), line
    assert newest_checkpoint(config.output).name == "step-00000004"


PAGE = "add-a-callback.md"


@pytest.mark.slow
def test_a_run_that_learns_no_more_is_stopped(tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed").mkdir()
    install(PAGE, tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path / 'installed'}")
    # Without a learning rate worth the name the validation loss stays where it is.
    config = with_lr(make(tokens, tmp_path / "run", steps=30, validation={"interval": 2, "samples": 7}), 1e-12)
    path = Path(write(config.model_copy(update={"schedule": config.schedule.model_copy(update={"min_lr": 0.0})})))
    chosen = tomllib.loads(files_of(PAGE)["settings.toml"])["train"]["callbacks"]
    path.write_text(f"callbacks = {json.dumps(chosen)}\n{path.read_text()}")
    for steps in ("steps=4", "steps=30"):  # the second resumes, and counts on
        job = start("-m", "gpt2train.train", "--config", str(path), "--set", steps, processes=2)
        code, _, err = finish(job)
        assert code == 0, err
    losses = [row["valid_loss"] for row in read_metrics(config.output) if "valid_loss" in row]
    assert len(losses) == next(n for n in range(4, 15) if min(losses[: n - 3]) <= min(losses[n - 3 : n]))
    steps = len(read_metrics(config.output))
    assert steps == 2 * len(losses) + 1 < 30
    assert newest_checkpoint(config.output).name == f"step-{steps:08}"
    best = json.loads((Path(config.output) / "early-stop.json").read_text())
    assert best == {"best": min(losses), "steps": steps}
    assert (
        "the validation loss has not fallen for 3 validations" in (Path(config.output) / "logs/rank-0.log").read_text()
    )
