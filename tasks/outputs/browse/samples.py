"""Training samples that hold a document, in the first epoch of each run that read these tokens alone."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from gpt2train.config import CONFIG_FILE, RunConfig, read_run_settings
from gpt2train.data.samples import Samples
from gpt2train.errors import RunError, UserError
from gpt2train.runs.trace import ANY_VOCABULARY
from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.output import FinishedStep

MAX_DOCUMENTS = 2_000_000  # above, the order of an epoch takes more than a second to make
MAX_SAMPLES = 20


class Runs:
    """Runs below an output folder. Those of object stores are not read."""

    def __init__(self, root: Folder) -> None:
        self.root = root
        self._opened = lru_cache(4)(Samples)  # with the order of an epoch

    def samples(self, step: FinishedStep, split: str, start: int, end: int) -> list[dict[str, Any]]:
        """Samples of each run that hold tokens of the document from `start` to `end` of a split; a note if unknown."""
        if not self.root.is_local:
            return []
        found: list[dict[str, Any]] = []
        for folder in sorted(Path(self.root.path()).glob(f"runs/*/{CONFIG_FILE}")):
            run: dict[str, Any] = {"run": f"runs/{folder.parent.name}"}
            try:
                config = read_run_settings(folder.parent)
                note = self._unknown(config, step)
                if note is None:
                    context, seed = config.model.context, config.seed if split == "train" else None
                    samples = self._opened(step.folder.path(f"{split}/tokens"), context, ANY_VOCABULARY, seed)
                    numbers = samples.containing(start, end, samples.per_epoch).tolist()
                    run |= {"context": context, "count": len(numbers), "samples": numbers[:MAX_SAMPLES]}
                else:
                    run["note"] = note
            except (UserError, RunError) as error:
                run["note"] = str(error)
            found.append(run)
        return found

    def _unknown(self, config: RunConfig, step: FinishedStep) -> str | None:
        """Reason why the samples of a run are not known here; None if they are."""
        corpora = config.data.corpora
        if config.data.split is not None or len(corpora) != 1:
            return "the run mixes corpora or splits them; its samples are not known here"
        prefix = Path(corpora[0].prefix)
        if prefix.resolve() != Path(step.folder.path("train/tokens")).resolve():
            return f"the run read other tokens: {prefix}"
        rows = sum(record.rows or 0 for record in step.manifest.outputs if "/documents" in record.name)
        return f"{count_of(rows, 'document')} are too many for an answer in a second" if rows > MAX_DOCUMENTS else None
