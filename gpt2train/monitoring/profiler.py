"""Profiles of some steps by torch's profiler, and memory snapshots of the GPU allocator, in the run folder.

`profile/rank-N.json` opens in Perfetto or chrome://tracing; `profile/rank-N.txt` lists the operators that took the most
time; `profile/memory-N.pickle` opens at pytorch.org/memory_viz.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from gpt2train.compat.torch import dump_memory, record_memory
from gpt2train.config import LoggingSettings
from gpt2train.parallel.mesh import DistContext

log = logging.getLogger("gpt2train")

FOLDER = "profile"
WARMUP_STEPS = 3  # steps before the recorded ones, so that buffers, caches and compiled code exist
ROWS = 30


class Profiler:
    """Profiler of `settings.profile` steps after three warm-up steps, once per job; inactive if that is 0.

    Its failure, such as of a full disk, is a warning: the run does not need a profile.
    """

    def __init__(self, settings: LoggingSettings, run: str, ctx: DistContext) -> None:
        self._left = settings.profile
        self._warm = WARMUP_STEPS
        self._folder, self._ctx = Path(run) / FOLDER, ctx
        self._memory = settings.memory_snapshot and ctx.device.type == "cuda"
        self._profile: profile | None = None

    def step(self) -> None:
        """Mark the start of a step, or the end of the last one."""
        if self._left == 0 and self._profile is None:
            return
        if self._warm:
            self._warm -= 1
        elif self._profile is None:
            with self._attempt():
                self._begin()
        else:
            self._left -= 1
            if self._left == 0:
                self.close()

    def close(self) -> None:
        """Write the profile; if the run ended early, of the steps recorded so far."""
        recorded, self._profile, self._left = self._profile, None, 0
        if recorded is None:
            return
        with self._attempt():
            recorded.stop()
            stem = self._folder / f"rank-{self._ctx.rank}"
            recorded.export_chrome_trace(str(stem.with_suffix(".json")))
            on_gpu = self._ctx.device.type == "cuda"
            key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
            stem.with_suffix(".txt").write_text(recorded.key_averages().table(sort_by=key, row_limit=ROWS))
            if self._memory:
                dump_memory(self._folder / f"memory-{self._ctx.rank}.pickle")
            log.info("profile: %s.json", stem)

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of torch, the driver or the disk
            self._profile, self._left = None, 0
            log.warning("warning: no profile: %s", " ".join(str(error).split()) or type(error).__name__)

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        on_gpu = self._ctx.device.type == "cuda"
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
        if self._memory:
            record_memory()
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()
