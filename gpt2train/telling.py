"""What a run tells: its introduction, a row and a line a step, warnings. The first rank speaks; all keep a log."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gpt2train.advice import before, learns_by_heart
from gpt2train.checkpoint.store import Position, StoredCorpus
from gpt2train.config import CONFIG_FILE, RunConfig, to_toml
from gpt2train.data.corpora import Corpora
from gpt2train.files import write_whole
from gpt2train.memory import peak_resident
from gpt2train.metrics import MetricsWriter, mfu, parameter_count
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import Place, together
from gpt2train.runs.record import note_start
from gpt2train.trackers import open_trackers

log = logging.getLogger("gpt2train")

GIB = 1 << 30


def introduce(config: RunConfig, place: Place, layout: Layout, data: Corpora, warmup: int) -> None:
    """What is trained, on what, how long, and what looks unwise."""
    log.info(
        "%s parameters, %s, %d processes on %s, %s, batch %d = %d x %d x %d, ZeRO %d",
        f"{parameter_count(config.shape):,}",
        config.precision,
        place.world,
        place.device.type,
        layout,
        layout.global_batch,
        layout.micro_batch,
        layout.data,
        layout.accumulation,
        config.parallel.zero,
    )
    corpora = data.epochs(config.steps * layout.global_batch)
    for name, tokens, epochs in corpora:
        log.info("%s: %s tokens, %.2f epochs in %d steps", name, f"{tokens:,}", epochs, config.steps)
    for warning in before(config, warmup, [(name, epochs) for name, _, epochs in corpora]):
        log.warning("warning: %s", warning)


class Telling:
    """Tells each step: metrics.jsonl and the trackers on the first rank, lines in every rank's log.

    Args:
        position: where the run goes on.
        layout: of the run, for its record.
        corpora: what it is trained on, for its record.

    Raises:
        UserError: a tracker that was asked for is not there; on all processes.
    """

    def __init__(
        self,
        config: RunConfig,
        place: Place,
        position: Position,
        layout: Layout,
        corpora: Sequence[StoredCorpus],
    ) -> None:
        self._config, self._place = config, place
        self._metrics = together(lambda: self._open(position, layout, corpora) if place.is_first else None)

    def _open(self, position: Position, layout: Layout, corpora: Sequence[StoredCorpus]) -> MetricsWriter:
        run, device = Path(self._config.output), self._place.device
        write_whole(run / CONFIG_FILE, to_toml(self._config).encode())
        note_start(
            self._config,
            position.step,
            world=self._place.world,
            layout=str(layout),
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            corpora=[(corpus.identity, corpus.tokens, corpus.share) for corpus in corpora],
        )
        return MetricsWriter(run, position.step, open_trackers(self._config, position.step))

    def row(
        self, position: Position, *, loss: float, grad_norm: float, lr: float, tokens: int, seconds: float
    ) -> dict[str, Any]:
        """The metrics of the step that led to `position`, which counted `tokens` targets and took `seconds`."""
        row: dict[str, Any] = {
            "step": position.step,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": lr,
            "tokens": position.samples * self._config.model.context,
            "skipped": position.skipped,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "memory_gib": self._memory() / GIB,
        }
        if used := mfu(row["tokens_per_second"], self._config.shape, self._place.device, self._place.world):
            row["mfu"] = used
        if position.scale:
            row["loss_scale"] = position.scale.value  # of the next step
        return row

    def write(self, row: dict[str, Any], last: bool) -> None:
        """Write a row, and a line where one is due."""
        if self._metrics is not None:
            self._metrics.write(row)
            if "valid_loss" in row and (warning := learns_by_heart(self._metrics.rows)):
                log.warning("warning: %s", warning)
        due = last or row["step"] == 1 or row["step"] % self._config.logging.every == 0
        if due or "valid_loss" in row:
            log.info(line(row, self._config.steps))

    def close(self) -> None:
        """Flush and close."""
        if self._metrics is not None:
            self._metrics.close()

    def _memory(self) -> int:
        """The most that this process has used so far, bytes: on the GPU where it has one."""
        on_gpu = self._place.device.type == "cuda"
        return torch.cuda.max_memory_allocated(self._place.device) if on_gpu else peak_resident()


def line(row: dict[str, Any], steps: int) -> str:
    """A step on the screen."""
    parts = [
        f"step {row['step']}/{steps}",
        f"loss {row['loss']:.4f}",
        f"grad {row['grad_norm']:.2f}",
        f"lr {row['lr']:.2e}",
        f"{row['tokens_per_second']:,.0f} tokens/s",
    ]
    parts += [f"MFU {row['mfu']:.1%}"] if "mfu" in row else []
    parts += [f"{row['memory_gib']:.2f} GiB"]
    parts += [f"scale 2^{math.log2(row['loss_scale']):.0f}"] if "loss_scale" in row else []
    parts += [f"skipped {row['skipped']}"] if row["skipped"] else []
    parts += [f"valid {row['valid_loss']:.4f}"] if "valid_loss" in row else []
    return " | ".join(parts)
