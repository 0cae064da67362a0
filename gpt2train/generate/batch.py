"""Sequences that go on together in one decoder: they join and end one by one."""

from collections.abc import Sequence

from gpt2train.generate.decoder import Decoder
from gpt2train.generate.sequence import TokenSequence, take


class Batch:
    """The running sequences of a decoder; row i of it is `running[i]`.

    Args:
        decoder: with no rows in it.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.running: list[TokenSequence] = []

    @property
    def going(self) -> bool:
        """Whether a step would draw anything."""
        return any(sequence.finished is None for sequence in self.running)

    @property
    def free(self) -> int:
        """Sequences that can join now."""
        return self.decoder.rows - sum(sequence.finished is None for sequence in self.running)

    def join(self, sequences: Sequence[TokenSequence]) -> None:
        """Read the prompts of sequences and draw the first token of each; no more of them than are `free`."""
        for sequence in sequences:
            if sequence.settings.prompt_log_probs:
                sequence.score_prompt(self.decoder.logits(sequence.context_tokens))
        self._drop()
        self._read([sequence for sequence in sequences if sequence.finished is None])

    def step(self) -> None:
        """Draw one more token for every sequence that is not finished."""
        self._drop()
        lengths, context = self.decoder.lengths, self.decoder.context
        full = [sequence for row, sequence in enumerate(self.running) if lengths[row] == context]
        if full:  # only with a window; the others take their usual step
            self._keep([row for row in range(len(self.running)) if lengths[row] < context])
        if self.running:
            take(self.running, self.decoder.step([sequence.tokens[-1] for sequence in self.running]))
        self._read(full)

    def _read(self, sequences: Sequence[TokenSequence]) -> None:
        if sequences:
            logits = self.decoder.add([sequence.context_tokens for sequence in sequences])
            self.running += sequences
            take(sequences, logits)

    def _drop(self) -> None:
        going = [row for row, sequence in enumerate(self.running) if sequence.finished is None]
        if len(going) < len(self.running):
            self._keep(going)

    def _keep(self, rows: list[int]) -> None:
        """Keep rows; the last ones move into the gaps, so that the fewest are copied."""
        kept, sources = set(rows), list(range(len(rows)))
        late = [row for row in rows if row >= len(rows)]
        for place in range(len(rows)):
            if place not in kept:
                sources[place] = late.pop()
        self.decoder.select(sources)
        self.running = [self.running[source] for source in sources]
