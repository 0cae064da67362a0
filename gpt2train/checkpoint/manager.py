"""Checkpoint manager of a training run: restores at the start and saves in the background.

Training pauses only while the state is copied. A thread then writes the copy; it uses its own process group, so that
its collectives do not interfere with those of training. Saves never overlap: each waits for the previous one.
"""

import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.checkpoint import resume, store
from gpt2train.checkpoint.init_from import OpenWeights, find_start
from gpt2train.checkpoint.manifest import FORMAT, CheckpointManifest, StoredCorpus
from gpt2train.checkpoint.staging import copy_to_cpu, deduplicate
from gpt2train.checkpoint.writer import clean_up, write
from gpt2train.config import RunConfig
from gpt2train.data.dataset import Dataset
from gpt2train.errors import RunError, UserError
from gpt2train.launch.rank_process import is_lost_contact
from gpt2train.parallel.grad_norm import local, norms
from gpt2train.parallel.mesh import all_or_raise, broadcast_from_rank0
from gpt2train.store.run_folder import FOLDER, checkpoint_name
from gpt2train.training.train_state import START, TrainState

log = logging.getLogger("gpt2train")

# Processes wait this long for the slowest disk. A dead process is detected at once, a hung one by training itself.
SAVE_TIMEOUT = timedelta(hours=1)
# A process that ends by an unexpected error waits for the save under way; after lost contact briefly, since a lost
# process cannot finish its part of it.
UNEXPECTED_SECONDS, LOST_SECONDS = 600.0, 10.0


class CheckpointManager:
    """Checkpoints of one run. All methods are collective; the context manager waits for the last save.

    Without data, those are the token files that the settings name.

    Attributes:
        due: True if the interval has passed, and the weights wait for the loss of the next step to be saved.
        failed: True if a background save failed; the next call of `save` or `wait` raises its error.
        corpora: training corpora of the run; set by `restore`.
        newest: checkpoint from which the run would resume; None if there is none.
        config: settings of the run, which its checkpoints get.
        source: model or checkpoint that the run has just begun from; empty of a run that goes on, or begins anew.
    """

    def __init__(self, config: RunConfig, data: Dataset | None = None, valid: Dataset | None = None) -> None:
        self.config, self._data, self._valid = config, data, valid
        self._group = dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._buffers: dict[str, Tensor] = {}
        self.corpora: tuple[StoredCorpus, ...] = ()
        self._stall = self._written = 0.0
        self.due = self.failed = False
        self.newest: Path | None = None
        self.source = ""
        self._finished: list[Path] = []
        self._validation: str | None = None

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        expected = kind is None or issubclass(kind, UserError | RunError)
        if error is not None and not expected and kind is not KeyboardInterrupt and self._writing is not None:
            # The copy in memory is complete, and the threads of the other processes write too, while those live.
            wait([self._writing], LOST_SECONDS if is_lost_contact(error) else UNEXPECTED_SECONDS)
        if expected:  # all processes reach this line; after an unexpected error the others may not
            try:
                self.wait()
            except RunError as second:
                if kind is None:
                    raise
                log.error("%s", second)
        self._thread.shutdown(wait=expected)
        if expected:
            dist.destroy_process_group(self._group)

    def restore(self, tensors: Mapping[str, Tensor], open_weights: OpenWeights) -> TrainState:
        """Load the newest intact checkpoint of the run in place, otherwise `checkpoints.init_from` if it is set.

        Returns the train state from which the run continues. Its count of consecutive skipped steps restarts at 0,
        since the weights precede those steps.

        Raises:
            UserError: the run folder belongs to another run, or there is no checkpoint at `init_from`.
            RunError: all checkpoints of the run are damaged (the run never silently restarts from scratch), or the
                weights of `init_from` are not finite.
        """
        config = self.config
        self.corpora = broadcast_from_rank0(lambda: resume.stored_corpora(config, self._data), self._group)
        self._validation = broadcast_from_rank0(lambda: resume.validation_identity(config, self._valid), self._group)
        lost: set[str] = set()
        while found := resume.find_own(config, self.corpora, self._group, lost):
            store.load(found.checkpoint, tensors, self._group)
            if (problem := non_finite_tensor(tensors)) is None:
                break
            log.warning("%s in %s; falling back to the previous checkpoint", problem, found.checkpoint)
            lost.add(found.checkpoint.name)
        initial = find_start(config, self.corpora, open_weights, self._group) if found is None else None
        broadcast_from_rank0(lambda: clean_up(config.output), self._group)
        if found is not None:
            previous = found.manifest.validation
            if None not in (previous, self._validation) and previous != self._validation:
                log.warning("the validation data has changed: earlier losses are not compared, and `best` is reset")
            self.newest, state = found.checkpoint, found.manifest.position
        elif initial is None:
            return START
        else:
            initial.load(tensors, self._group)
            if problem := non_finite_tensor(tensors):
                raise RunError(f"{problem} in {config.checkpoints.init_from}; give another checkpoints.init_from")
            state, self.source = initial.state, initial.source
        return state.model_copy(update={"consecutive_skipped": 0})

    def save_due(self, tensors: Mapping[str, Tensor], state: TrainState, measured: Mapping[str, float] = {}) -> None:
        """Make the save that is due, or log why nothing is saved; see `save`."""
        self.due = False
        if problem := self.save(tensors, state, measured):
            log.warning("step %d is not saved: %s", state.step, problem)

    def save(self, tensors: Mapping[str, Tensor], state: TrainState, measured: Mapping[str, float] = {}) -> str | None:
        """Save a checkpoint, in the background or, if `checkpoints.async_save` is off, synchronously.

        Args:
            tensors: state of this process.
            state: train state.
            measured: columns of the validation of these weights, of which the finite `valid_*` are saved; empty if they
                were not validated.

        Returns:
            None, or the reason why nothing is saved: a tensor that is not finite, on any process.

        Raises:
            RunError: this save or the previous one cannot be written.
        """
        started_at = time.perf_counter()
        self.wait()
        if problem := non_finite_tensor(tensors):
            return problem
        config = self.config
        scores = {name: value for name, value in measured.items() if name.startswith("valid_") and math.isfinite(value)}
        manifest = CheckpointManifest(
            format=FORMAT,
            position=state.model_copy(update={"consecutive_skipped": 0}),
            config=config.model_dump(mode="json"),
            tokenizer_hash=config.tokenizer_hash,
            data=self.corpora,
            validation=self._validation,
            valid_loss=scores.pop("valid_loss", None),
            valid_metrics={name.removeprefix("valid_"): value for name, value in scores.items()},
            torch=torch.__version__,
            files={},
        )
        own = deduplicate(tensors)
        if config.checkpoints.async_save:
            on_gpu = {name for name, tensor in own.items() if tensor.device.type != "cpu"}
            own = copy_to_cpu(own, self._buffers)
            self._buffers = {name: own[name] for name in on_gpu}
        self._writing = self._thread.submit(self._write, own, manifest)
        self.newest = Path(config.output) / FOLDER / checkpoint_name(state.step)
        if not config.checkpoints.async_save:
            self.wait()
        self._stall = time.perf_counter() - started_at
        log.info("saving step %d: training paused for %.2f s", state.step, self._stall)
        return None

    def wait(self) -> None:
        """Wait until the current save is on disk; RunError if it cannot be written: earlier ones are intact."""
        writing, self._writing, self.failed = self._writing, None, False
        if writing is not None:
            writing.result()

    def take_written(self) -> list[Path]:
        """Checkpoints that were written since the last call, oldest first."""
        return [self._finished.pop(0) for _ in range(len(self._finished))]

    def seconds(self) -> dict[str, float]:
        """Metrics of saving since the last call: seconds that training paused, and seconds of background writing."""
        times = {"save_stall_seconds": self._stall, "save_seconds": self._written}
        self._stall = self._written = 0.0
        return {name: seconds for name, seconds in times.items() if seconds}

    def _write(self, own: Mapping[str, Tensor], manifest: CheckpointManifest) -> Path:
        started_at = time.perf_counter()
        settings = self.config.checkpoints
        try:
            folder = write(self.config.output, own, manifest, settings.keep, settings.keep_best, self._group)
        except BaseException:
            self.failed = True
            raise
        self._written = time.perf_counter() - started_at
        log.info("saved %s in %.1f s", folder.name, self._written)
        self._finished.append(folder)
        return folder


def non_finite_tensor(tensors: Mapping[str, Tensor]) -> str | None:
    """Find a tensor that is not finite on any process. Collective.

    The check uses norms in float32: elements beyond 1e19 count as not finite, and no trained weight comes near that.

    Returns:
        A sentence with the name of the first such tensor, or None if all are finite.
    """

    def check() -> None:
        shards = {name: local(tensor) for name, tensor in tensors.items()}
        for device in {shard.device for shard in shards.values()}:  # two, if the optimizer alone is offloaded
            there = {name: shard for name, shard in shards.items() if shard.device == device}
            finite = norms(list(there.values())).isfinite().tolist()
            for name, is_finite in zip(there, finite, strict=True):
                if not is_finite:
                    raise RunError(f"{name} is not finite")

    try:
        all_or_raise(check)
    except RunError as error:
        return str(error)
    return None
