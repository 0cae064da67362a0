"""Experiment trackers that get the metrics of a run: TensorBoard, Weights & Biases, MLflow.

The latter two are imported only if a setting requests them. They are optional: `pip install gpt2train[track]`. They get
the settings and one row per step, from rank 0 only, and never a text or a token. Each has a thread of its own, since a
run must neither wait for a tracker nor end with it.
"""

import contextlib
import functools
import importlib
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from gpt2train.config import RunConfig
from gpt2train.extras import needs_extra
from gpt2train.settings import flatten
from gpt2train.store.counts import count_of
from gpt2train.store.files import write_atomic

log = logging.getLogger("gpt2train")

TENSORBOARD = "tensorboard"
IDENTITY = "tracking.json"
MAX_ROWS = 10_000  # rows that wait for a tracker that does not answer; older ones are dropped
MAX_METRICS, MAX_PARAMS = 1000, 100  # of a request to MLflow
OPEN_SECONDS = 10.0  # for the server of Weights & Biases to open a run; then it is kept on the disk
CLOSE_SECONDS = 60.0  # without its server Weights & Biases needs half of it until it writes to the disk
FINISH_SECONDS = 20.0  # for Weights & Biases to upload the rest, below CLOSE_SECONDS
RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
# How a tracked run is answered that was deleted: codes of MLflow, text of the server of Weights & Biases.
GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
DELETED = "previously created and deleted"


class Row(NamedTuple):
    """Metrics of one step."""

    step: int
    at: float  # seconds since the epoch
    values: Mapping[str, float]


class TensorBoard:
    """TensorBoard files in the run folder, shown by `tensorboard --logdir`."""

    def __init__(self, config: RunConfig, step: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from torch.utils.tensorboard import SummaryWriter  # takes 1 s, which only rank 0 spends

        _silence_threads("tensorboard.")
        self._board = SummaryWriter(str(Path(config.output) / TENSORBOARD), purge_step=step + 1)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in row.values.items():
                self._board.add_scalar(name, value, row.step, walltime=row.at)

    def close(self) -> None:
        self._board.close()


class WeightsAndBiases:
    """Run in Weights & Biases; `WANDB_MODE=offline` keeps it on disk, as a missing key and a silent server do.

    Once it is open, the library itself keeps on disk what it cannot send, and tries again.
    """

    def __init__(self, config: RunConfig, step: int) -> None:
        wandb = _load("wandb", "logging.wandb")
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # its reports on itself fail with the server
        known = _tracked_runs(config.output).get("wandb")
        name = known or secrets.token_hex(4)
        try:
            try:
                self._run = self._init(wandb, config, id=name, resume="allow" if known else None)
            except wandb.errors.CommError as error:
                if not known or DELETED not in str(error):
                    raise
                _warn_of_gone("logging.wandb", known, step)
                name, known = secrets.token_hex(4), None
                self._run = self._init(wandb, config, id=name)
        except wandb.errors.Error as error:  # without a key too
            self._run = self._init(wandb, config, id=name, resume="allow" if known else None, mode="offline")
            self._warn(" ".join(str(error).split()))
        _store_id(config.output, "wandb", name)

    @staticmethod
    def _init(wandb: Any, config: RunConfig, **options: Any) -> Any:
        with contextlib.suppress(Exception):  # a run whose process has died would be returned again
            wandb.teardown()
        limits: dict[str, Any] = {"init_timeout": OPEN_SECONDS}
        if "finish_timeout" in wandb.Settings.model_fields:  # not in older releases, which wait without end
            limits |= {"finish_timeout": FINISH_SECONDS, "finish_timeout_raises": True}
        # Without a key it would ask for one on a terminal, and the run would wait for the answer at its end.
        stdin = sys.stdin
        with Path(os.devnull).open() as sys.stdin:
            try:
                return wandb.init(
                    project=config.logging.wandb,
                    dir=config.output,
                    name=Path(config.output).name,
                    config=config.model_dump(mode="json"),
                    settings=wandb.Settings(console="off", **limits),
                    **options,
                )
            finally:
                sys.stdin = stdin

    def _warn(self, reason: str) -> None:
        folder = Path(self._run.settings.sync_dir)
        log.warning(
            "warning: logging.wandb: %s; the rows are kept in %s; send them later: wandb sync %s",
            *(reason, folder, quote(str(folder))),
        )

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(dict(row.values), step=row.step)

    def close(self) -> None:
        try:
            self._run.finish()
        except TimeoutError:
            self._warn("the server has not taken all rows")


class MLflow:
    """Run in MLflow; `MLFLOW_TRACKING_URI` names a folder or a server."""

    def __init__(self, config: RunConfig, step: int) -> None:
        mlflow = _load("mlflow", "logging.mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        for name in ("urllib3", "mlflow"):  # a warning for each attempt; ours is one line
            logging.getLogger(name).setLevel(logging.ERROR)
        self._client = mlflow.MlflowClient()
        self._id = _tracked_runs(config.output).get("mlflow", "")
        try:
            if self._id:
                self._client.update_run(self._id, status="RUNNING")
        except mlflow.exceptions.MlflowException as error:
            if error.error_code not in GONE:
                raise
            _warn_of_gone("logging.mlflow", self._id, step)
            self._id = ""
        self._id = self._id or self._create(config)

    def _create(self, config: RunConfig) -> str:
        name = config.logging.mlflow
        existing = self._client.get_experiment_by_name(name)
        number = existing.experiment_id if existing else self._client.create_experiment(name)
        created = str(self._client.create_run(number, run_name=Path(config.output).name).info.run_id)
        _store_id(config.output, "mlflow", created)
        settings = flatten(config.model_dump(mode="json"))
        params = [self._entities.Param(key, str(value)) for key, value in settings.items()]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(created, params=params[first : first + MAX_PARAMS])
        return created

    def write(self, rows: Sequence[Row]) -> None:
        metric = self._entities.Metric
        found = [metric(name, value, int(row.at * 1e3), row.step) for row in rows for name, value in row.values.items()]
        for first in range(0, len(found), MAX_METRICS):
            self._client.log_batch(self._id, metrics=found[first : first + MAX_METRICS])

    def close(self) -> None:
        self._client.set_terminated(self._id)


Tracker = TensorBoard | WeightsAndBiases | MLflow


class TrackerThread:
    """Thread that sends the rows of a run to one tracker, all that wait at once.

    A failure is one warning, until the tracker works again. It is then opened anew after a pause, and gets the rows
    that wait.

    Args:
        setting: setting that requests the tracker, for messages.
        open_tracker: opens the tracker for the rows after a step.
        step: step from which the run continues.
    """

    def __init__(self, setting: str, open_tracker: Callable[[int], Tracker], step: int) -> None:
        self._setting, self._open, self._sent = setting, open_tracker, step
        self._rows: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closing = self._failed = self._left = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name=setting, daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Send a row, later."""
        with self._changed:
            self._rows.append(Row(step, time.time(), values))
            if len(self._rows) > MAX_ROWS:
                self._rows.popleft()
                self._dropped += 1
            self._changed.notify()

    def close(self, wait: bool = True) -> None:
        """End the tracked run after the rows that wait, but within `CLOSE_SECONDS`; without `wait` at once."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS if wait else 0)
        self._left = self._thread.is_alive()
        if wait and (missing := len(self._rows) + self._dropped):
            log.warning("warning: %s lacks %s; metrics.jsonl has all", self._setting, count_of(missing, "row"))
        elif wait and self._thread.is_alive():
            log.warning("warning: %s does not end; the run ends without it", self._setting)

    def _run(self) -> None:
        pause, last = RETRY_SECONDS, False
        while not last:
            last = self._closing
            try:
                tracker = self._open(self._sent)
                self._send_all(tracker)
                tracker.close()
                return
            except Exception as error:  # noqa: BLE001 - of libraries and servers that the result does not need
                if not self._failed and not self._left:
                    reason = " ".join(str(error).split()).removeprefix(f"{self._setting}: ") or type(error).__name__
                    log.warning("warning: %s: %s; the run goes on, and its rows are sent later", self._setting, reason)
                pause = min(MAX_RETRY_SECONDS, 2 * pause) if self._failed else RETRY_SECONDS
                self._failed = True
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)

    def _send_all(self, tracker: Tracker) -> None:
        """Send rows as they come, until the end of the run."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._rows or self._closing)
                rows = list(self._rows)
            if not rows:
                return
            tracker.write(rows)
            with self._changed:
                self._sent = rows[-1].step
                while self._rows and self._rows[0].step <= self._sent:
                    self._rows.popleft()
            if self._failed:
                lacks = f" but for {count_of(self._dropped, 'row')}" if self._dropped else ""
                log.info("%s works again, and has all rows%s", self._setting, lacks)
                self._failed = False


def open_trackers(config: RunConfig, step: int) -> list[TrackerThread]:
    """Open the trackers that the settings request; W&B and MLflow resume the same tracked run from a step.

    Raises:
        UserError: a requested tracker is not installed.
    """
    settings, requested = config.logging, dict[str, Callable[[RunConfig, int], Tracker]]()
    if settings.tensorboard:
        requested["logging.tensorboard"] = TensorBoard
    if settings.wandb is not None:
        _load("wandb", "logging.wandb")
        requested["logging.wandb"] = WeightsAndBiases
    if settings.mlflow is not None:
        _load("mlflow", "logging.mlflow")
        requested["logging.mlflow"] = MLflow
    return [TrackerThread(name, functools.partial(kind, config), step) for name, kind in requested.items()]


def _load(package: str, setting: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise needs_extra(setting, "track") from error


def _tracked_runs(run: str) -> dict[str, str]:
    """Ids of this run in the trackers, so that a resumed run stays one curve."""
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
        found = json.loads((Path(run) / IDENTITY).read_bytes())
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    return {}


@functools.cache  # once, also if the tracker is opened again
def _silence_threads(package: str) -> None:
    """Drop the tracebacks of a library's own threads, whose errors its next call raises."""
    report = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if not type(error.thread).__module__.startswith(package):
            report(error)

    threading.excepthook = hook


def _warn_of_gone(setting: str, name: str, step: int) -> None:
    log.warning("warning: %s: the run %s was deleted there; a new one gets the rows after step %d", setting, name, step)


def _store_id(run: str, tracker: str, name: str) -> None:
    text = json.dumps(_tracked_runs(run) | {tracker: name}, indent=1) + "\n"
    write_atomic(Path(run) / IDENTITY, text.encode())
