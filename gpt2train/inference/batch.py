"""Batch of sequences in one decoder; sequences join and finish independently."""

from collections.abc import Sequence

from gpt2train.inference.decoder import Decoder
from gpt2train.inference.sequence import TokenSequence, sample_next


class Batch:
    """Running sequences of a decoder; the decoder's row i belongs to `running[i]`.

    Args:
        decoder: decoder without rows.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.running: list[TokenSequence] = []

    @property
    def active(self) -> bool:
        """True if a sequence is unfinished."""
        return any(sequence.finished is None for sequence in self.running)

    @property
    def free(self) -> int:
        """Number of sequences that can join now."""
        return self.decoder.rows - sum(sequence.finished is None for sequence in self.running)

    def join(self, sequences: Sequence[TokenSequence]) -> None:
        """Read the prompts of at most `free` sequences and sample the first token of each."""
        for sequence in sequences:
            if sequence.settings.prompt_log_probs:
                sequence.score_prompt(self.decoder.logits(sequence.context_tokens))
        self._drop_finished()
        self._read([sequence for sequence in sequences if sequence.finished is None])

    def step(self) -> None:
        """Sample one more token for every unfinished sequence."""
        self._drop_finished()
        lengths, context = self.decoder.lengths, self.decoder.context
        full = [sequence for row, sequence in enumerate(self.running) if lengths[row] == context]
        if full:  # only with a window; the other sequences take a normal step
            self._keep([row for row in range(len(self.running)) if lengths[row] < context])
        if self.running:
            sample_next(self.running, self.decoder.step([sequence.tokens[-1] for sequence in self.running]))
        self._read(full)

    def _read(self, sequences: Sequence[TokenSequence]) -> None:
        if sequences:
            logits = self.decoder.add([sequence.context_tokens for sequence in sequences])
            self.running += sequences
            sample_next(sequences, logits)

    def _drop_finished(self) -> None:
        active = [row for row, sequence in enumerate(self.running) if sequence.finished is None]
        if len(active) < len(self.running):
            self._keep(active)

    def _keep(self, rows: list[int]) -> None:
        """Keep these rows only; the last ones fill the gaps, which copies the fewest rows."""
        kept, sources = set(rows), list(range(len(rows)))
        late = [row for row in rows if row >= len(rows)]
        for row in range(len(rows)):
            if row not in kept:
                sources[row] = late.pop()
        self.decoder.select(sources)
        self.running = [self.running[source] for source in sources]
