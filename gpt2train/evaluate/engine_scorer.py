"""Log-probabilities of given tokens under the model in training, on its layout."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.model.shape import Shape
from gpt2train.training.engine import Engine

LOGIT_ROWS = 256  # rows of logits in memory at a time: 51 MB in float32 at a vocabulary of 50,257


class EngineScorer:
    """Model in training as a `gpt2train.evaluate.scoring_request.DistributedScorer`.

    Its calls are collective: all processes make them with the same arguments, inside of `Engine.evaluating`. The
    data-parallel ranks share the sequences of a call, and every process gets all its results.

    Attributes:
        shape: shape of the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.shape: Shape = engine.config.shape

    def score(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[int], positions: Sequence[int], targets: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Score targets, as `DistributedScorer.score` defines."""
        engine, layout = self._engine, self._engine.layout
        # Every process runs a forward, since a forward can communicate: one without a sequence takes a row of padding.
        own = range(engine.data_rank, len(sequences), layout.data)
        longest = max(map(len, sequences))
        length = min(-(-longest // layout.tp) * layout.tp, self.shape.context)  # slices of equal length
        tokens = torch.zeros(-(-len(sequences) // layout.data), length, dtype=torch.int64)
        for row, index in enumerate(own):
            tokens[row, : len(sequences[index])] = torch.tensor(sequences[index])
        mine = [at for at, row in enumerate(rows) if row % layout.data == engine.data_rank]
        places = [rows[at] // layout.data for at in mine], [positions[at] for at in mine]
        device = engine.ctx.device
        with self._scored_rows(places, torch.tensor([targets[at] for at in mine], dtype=torch.int64, device=device)):
            found = engine.logits(tokens.to(device))
        results = torch.zeros(2, len(rows))
        # The tensor-parallel ranks have the same numbers; one of them gives each number, so that the sum is exact.
        if found is not None and layout.coordinates(engine.ctx.rank).tp == 0 and mine:
            results[:, mine] = found.cpu()
        if engine.ctx.world > 1:
            dist.all_reduce(results)
        return results[0], results[1] > 0

    @contextmanager
    def _scored_rows(self, places: tuple[list[int], list[int]], targets: Tensor) -> Iterator[None]:
        """Have the model compute, in the place of logits, log-probability and verdict of the targets, float32 [2, n].

        Args:
            places: row and position of the hidden state before each target.
            targets: int64 [n].
        """
        head, vocab = self._engine.model_parts[-1], self.shape.vocab
        project, cap = head.project, head.cap

        def scored(hidden: Tensor, weight: Tensor) -> Tensor:
            chosen, parts = hidden[places], [torch.zeros(2, 0, device=hidden.device)]
            for start in range(0, max(len(targets), 1), LOGIT_ROWS):
                logits = cap(project(chosen[None, start : start + LOGIT_ROWS], weight))[0, :, :vocab].float()
                target = targets[start : start + LOGIT_ROWS]
                log_probs = logits.gather(1, target[:, None])[:, 0] - logits.logsumexp(1)
                greedy = logits.argmax(1) == target
                parts.append(torch.stack([log_probs, greedy.float()]))
            return torch.cat(parts, 1)

        head.project, head.cap = scored, lambda logits: logits  # type: ignore[method-assign]
        try:
            yield
        finally:
            head.project = project
            del head.cap  # the method of the class again
