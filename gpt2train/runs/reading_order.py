"""Training samples and steps of a run that read given documents."""

from bisect import bisect_right
from pathlib import Path

import numpy as np

from gpt2train.config import RunConfig
from gpt2train.data.mixture import Mixture
from gpt2train.data.samples import CACHE, Samples
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.runs.trace import read_samples

PACKED = ("next_token", "span_corruption")  # objectives whose samples are cut from the stream of documents


class ReadingOrder:
    """Order in which a run with a packed objective has read its training corpora so far."""

    def __init__(self, run: Path, config: RunConfig) -> None:
        self._run, self._config = run, config
        self._mixture = Mixture([corpus.weight for corpus in config.data.corpora])
        self._samples: dict[int, Samples] = {}

    def containing(self, corpus: int, start: int, end: int) -> np.ndarray:
        """Global samples with any of these tokens, of one document of a corpus, ascending."""
        found = self._of(corpus).containing(start, end, self._mixture.drawn(corpus, self._read()))
        return np.sort(self._mixture.global_indices(corpus, found))

    def of_documents(self, corpus: int, starts: np.ndarray) -> np.ndarray:
        """Global samples with any token of the documents of a corpus that start at these tokens, ascending."""
        found = self._of(corpus).of_documents(starts, self._mixture.drawn(corpus, self._read()))
        return np.sort(self._mixture.global_indices(corpus, found))

    def steps(self, samples: list[int]) -> list[int]:
        """Steps, from 0, that read these samples, ascending; the batch may have changed during the run."""
        rows = read_metrics(self._run)
        used = [int(row.get("tokens") or 0) // self._config.model.context for row in rows]  # samples after each step
        found = [bisect_right(used, sample) for sample in samples]
        return list(dict.fromkeys(rows[number]["step"] - 1 for number in found if number < len(rows)))

    def _read(self) -> int:
        """Samples read so far: the run may go on."""
        return read_samples(self._run, self._config)

    def _of(self, corpus: int) -> Samples:
        if corpus not in self._samples:
            config = self._config
            prefix, cache = config.data.corpora[corpus].prefix, Path(config.data.cache or self._run / CACHE)
            lengths = config.sample_length, config.vocab, config.seed
            self._samples[corpus] = Samples(prefix, *lengths, cache, split=config.data.weights)
        return self._samples[corpus]
