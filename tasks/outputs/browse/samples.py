"""Training samples that hold a range of tokens, in the first epoch of each run that read these tokens alone."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.config import CONFIG_FILE, RunConfig, read_run_config
from gpt2train.data.epoch import Epoch
from gpt2train.errors import RunError, UserError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.output import FinishedStep
from gpt2train.store.rows import column_of

MAX_DOCUMENTS = 2_000_000  # above, the order of an epoch takes more than a second to make
MAX_SAMPLES = 20


class Runs:
    """Runs below an output folder. Those of object stores are not read."""

    def __init__(self, root: Folder) -> None:
        self.root = root
        self._epoch = lru_cache(4)(lambda split, context, seed: Epoch.build(self._bounds[split], context, seed, 0))
        self._bounds: dict[str, np.ndarray] = {}

    def samples(self, step: FinishedStep, names: list[str], split: str, start: int) -> list[dict[str, Any]]:
        """Samples of each run that hold tokens of the document at `start` of a split; a note where they are unknown."""
        if not self.root.is_local:
            return []
        found: list[dict[str, Any]] = []
        for folder in sorted(Path(self.root.path()).glob(f"runs/*/{CONFIG_FILE}")):
            run: dict[str, Any] = {"run": f"runs/{folder.parent.name}"}
            try:
                config = read_run_config(folder)
                note = self._unknown(config, step, split)
                if note is None:
                    numbers = self._samples(config, step, tuple(names), split, start)
                    run |= {"context": config.model.context, "count": len(numbers), "samples": numbers[:MAX_SAMPLES]}
                else:
                    run["note"] = note
            except (UserError, RunError) as error:
                run["note"] = str(error)
            found.append(run)
        return found

    def _unknown(self, config: RunConfig, step: FinishedStep, split: str) -> str | None:
        """Reason why the samples of a run are not known here; None if they are."""
        corpora = config.data.corpora
        if config.data.split is not None or len(corpora) != 1:
            return "the run mixes corpora or splits them; its samples are not known here"
        prefix = Path(corpora[0].prefix)
        if prefix.resolve() != Path(step.folder.path("train/tokens")).resolve():
            return f"the run read other tokens: {prefix}"
        rows = sum(record.rows or 0 for record in step.manifest.outputs if "/documents" in record.name)
        return f"{count_of(rows, 'document')} are too many for an answer in a second" if rows > MAX_DOCUMENTS else None

    def _samples(
        self, config: RunConfig, step: FinishedStep, names: tuple[str, ...], split: str, start: int
    ) -> list[int]:
        if split not in self._bounds:
            table = column_of(step.folder, names, ["end"])
            ends = table["end"].to_numpy() if table else np.empty(0, dtype=np.int64)
            self._bounds[split] = np.concatenate(([0], ends))
        return samples_of(self._epoch(split, config.model.context, config.seed if split == "train" else None), start)


def samples_of(epoch: Epoch, start: int) -> list[int]:
    """Samples of an epoch that hold tokens of the document that starts at a position in the corpus, ascending."""
    lengths = np.diff(epoch.ends, prepend=0)
    [document] = np.flatnonzero(epoch.ends - lengths + epoch.shift == start)[:1]
    first, last = int(epoch.ends[document] - lengths[document]), int(epoch.ends[document]) - 1
    # A sample also holds the token after its inputs, the first of the sample that follows it.
    numbers = np.arange(max(0, first - 1) // epoch.context, last // epoch.context + 1)
    found: list[int] = np.flatnonzero(np.isin(epoch.order, numbers)).tolist()
    return found
