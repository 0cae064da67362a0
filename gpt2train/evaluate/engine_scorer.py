"""Log-probabilities of given tokens under the model in training, on its layout."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.model.shape import Shape
from gpt2train.training.engine import Engine


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
        device, head = engine.ctx.device, engine.model_parts[-1]
        own_targets = torch.tensor([targets[at] for at in mine], dtype=torch.int64, device=device)

        def scored(hidden: Tensor) -> Tensor:
            log_probs, greedy = head.log_probs(hidden[places], own_targets)
            return torch.stack((log_probs, greedy.float()))

        found = engine.logits(tokens.to(device), scored)
        results = torch.zeros(2, len(rows))
        # The tensor-parallel ranks have the same numbers; one of them gives each number, so that the sum is exact.
        if found is not None and layout.coordinates(engine.ctx.rank).tp == 0 and mine:
            results[:, mine] = found.cpu()
        if engine.ctx.world > 1:
            dist.all_reduce(results)
        return results[0], results[1] > 0
