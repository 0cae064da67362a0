"""A run's checkpoints while it trains: found and loaded in the beginning, written in the background.

Training stands still only while the state is copied. A thread then writes the copy; it has a process group of its own,
so that its messages and those of the training do not meet. Saves never overlap: each waits for the one before.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.checkpoint import keep, resume, store
from gpt2train.checkpoint.begin import find_start
from gpt2train.checkpoint.staging import copied, own_share
from gpt2train.checkpoint.store import CheckpointManifest, Position, StoredCorpus
from gpt2train.checkpoint.writing import write
from gpt2train.config import RunConfig
from gpt2train.errors import RunError, UserError
from gpt2train.parallel.mesh import from_first

log = logging.getLogger("gpt2train")

# Processes wait here for the slowest one's disk. A process that dies is noticed at once, one that hangs by training.
PATIENCE = timedelta(hours=1)


class Checkpoints:
    """The checkpoints of one run, for all its processes together. Used in a `with`, which waits for the last save.

    Attributes:
        failed: a save in the background went wrong; the next call of `save` or `wait` raises its error.
        corpora: what the run is trained on; known after `restore`.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._buffers: dict[str, Tensor] = {}
        self.corpora: tuple[StoredCorpus, ...] = ()
        self._stall = self._written = 0.0
        self.failed = False

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        foreseen = kind is None or issubclass(kind, UserError | RunError)
        if foreseen:  # all processes are here; after a bug nobody may be left to wait for
            try:
                self.wait()
            except RunError as second:
                if kind is None:
                    raise
                log.error("%s", second)
        self._thread.shutdown(wait=foreseen)
        if foreseen:
            dist.destroy_process_group(self._group)

    def restore(self, state: Mapping[str, Tensor]) -> Position:
        """Load where the run goes on: its newest whole checkpoint, else `checkpoints.init_from`, else nothing.

        Raises:
            UserError: the run folder is of another run, or there is nothing at `init_from`.
            RunError: there are checkpoints, and all of them are damaged: never a silent new start.
        """
        config = self._config
        self.corpora = from_first(lambda: resume.stored_corpora(config), self._group)
        found = resume.find_own(config, self.corpora, self._group)
        begin = find_start(config, self.corpora, self._group) if found is None else None
        from_first(lambda: keep.tidy(config.output), self._group)
        if found is not None:
            store.load(found.checkpoint, state, self._group)
            return found.manifest.position
        if begin is None:
            return resume.START
        begin.load(state, self._group)
        return begin.position

    def save(self, state: Mapping[str, Tensor], position: Position, valid_loss: float | None = None) -> None:
        """Save the state at a position, in the background or (`checkpoints.asynchronous` off) at once.

        Raises:
            RunError: this save, or the one before, cannot be written.
        """
        began = time.perf_counter()
        self.wait()
        config = self._config
        manifest = CheckpointManifest(
            format=store.FORMAT,
            position=position,
            config=config.model_dump(mode="json"),
            tokenizer_hash=config.tokenizer_hash,
            data=self.corpora,
            valid_loss=valid_loss,
            torch=torch.__version__,
            files={},
        )
        share = own_share(state)
        if config.checkpoints.asynchronous:
            on_gpu = {name for name, tensor in share.items() if tensor.device.type != "cpu"}
            share = copied(share, self._buffers)
            self._buffers = {name: share[name] for name in on_gpu}
        self._writing = self._thread.submit(self._write, share, manifest)
        if not config.checkpoints.asynchronous:
            self.wait()
        self._stall = time.perf_counter() - began
        log.info("saving step %d: training stood still for %.2f s", position.step, self._stall)

    def wait(self) -> None:
        """Wait until what is being saved is on the disk.

        Raises:
            RunError: it cannot be written; checkpoints before it are whole.
        """
        writing, self._writing, self.failed = self._writing, None, False
        if writing is not None:
            writing.result()

    def seconds(self) -> dict[str, float]:
        """For the metrics: how long training stood still, and how long was written, since the last call."""
        told = {"save_stall_seconds": self._stall, "save_seconds": self._written}
        self._stall = self._written = 0.0
        return {name: seconds for name, seconds in told.items() if seconds}

    def _write(self, share: Mapping[str, Tensor], manifest: CheckpointManifest) -> Path:
        began = time.perf_counter()
        settings = self._config.checkpoints
        try:
            folder = write(self._config.output, share, manifest, settings.keep, settings.keep_best, self._group)
        except BaseException:
            self.failed = True
            raise
        self._written = time.perf_counter() - began
        log.info("saved %s in %.1f s", folder.name, self._written)
        return folder
