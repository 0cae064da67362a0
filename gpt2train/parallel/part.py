"""One process's part of a model that answers, and of its rows: some layers, of each layer some heads.

Every process is told the same calls in the same order (`gpt2train.parallel.decode`) and does its share: hidden states
go from stage to stage, sums over the tensor-parallel group are made inside the layers, and the logits come back to the
first process, from each process of the last stage its part of the vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from gpt2train.checkpoint.weights import Weights, empty_model
from gpt2train.model.cache import Cache, Prefill, Step
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import PIPELINE, TENSOR, Place, make_mesh
from gpt2train.parallel.reading import read_part
from gpt2train.parallel.stages import stage_layers
from gpt2train.parallel.tensor import apply_tensor_parallel

LOGIT_ROWS = 1024  # rows of logits alive at a time


class Part:
    """The layers of this process, and the keys and values of its heads.

    Args:
        shape: of the whole model.
        layout: of all processes, who make their parts together.
        place: this process's; its timeout is that of every communication.
    """

    def __init__(self, shape: Shape, layout: Layout, place: Place) -> None:
        self.shape, self.device, self.layout = shape, place.device, layout
        mesh = make_mesh(place, layout)
        self.stage, self.line = mesh[PIPELINE].get_local_rank(), mesh[PIPELINE].get_group()
        self.last: list[int] = mesh.mesh[-1].flatten().tolist()
        self.rank = place.rank
        # Logits come as float32 on the CPU: gloo carries them, whatever carries the hidden states.
        self.home = dist.new_group(timeout=place.timeout, backend="gloo")
        self.column = mesh[TENSOR].get_local_rank()
        self.layers = stage_layers(shape, layout.pp)[self.stage]
        self.model = empty_model(shape).keep_only(self.layers).eval()
        apply_tensor_parallel(self.model, mesh[TENSOR], sequence_parallel=False)
        self.cache = self._cache(0, 0)

    def read(self, weights: Weights) -> None:
        """Read this process's weights, and no others.

        Raises:
            UserError: they are not of this shape, or cannot be read.
        """
        for name, weight in read_part(weights, self.layers, self.layout.tp, self.column).items():
            module, _, last = name.rpartition(".")
            # Plain tensors in the place of DTensors: they cost no dispatch, and the layers take both.
            parameter = nn.Parameter(weight.to(self.device), requires_grad=False)
            setattr(self.model.get_submodule(module), last, parameter)

    def open(self, rows: int, context: int) -> None:
        """Begin without a row, with room for so many of so many tokens."""
        self.cache = self._cache(rows, context)

    def add(self, lengths: Sequence[int], tokens: Tensor) -> Tensor | None:
        """New rows, tokens [rows, longest] padded on the right; logits after the last one of each, on rank 0."""
        hidden = self._through(tokens, self.cache.begin(lengths))
        places = [length - 1 for length in lengths]
        return self._home(None if hidden is None else hidden[range(len(lengths)), places], len(lengths))

    def step(self, tokens: Tensor) -> Tensor | None:
        """One more token [rows, 1] for every row; logits after it, on rank 0."""
        positions = torch.tensor(self.cache.lengths, device=self.device)[:, None]
        hidden = self._through(tokens, self.cache.go_on(), positions)
        return self._home(None if hidden is None else hidden[:, 0], len(tokens))

    def select(self, sources: Sequence[int]) -> None:
        """As `Decoder.select`."""
        self.cache.select(sources)

    def logits(self, tokens: Tensor) -> Tensor | None:
        """Logits after every token of one sequence [1, length], on rank 0; rows are left as they are."""
        hidden = self._through(tokens)
        return self._home(None if hidden is None else hidden[0], tokens.shape[1])

    def score(self, tokens: Tensor, rows: Tensor, places: Tensor, targets: Tensor) -> Tensor | None:
        """Log-probability of each target, and 1 where it has the greatest logit, float64 [targets, 2], on rank 0.

        Four numbers a target travel instead of its logits: at a vocabulary of 50,257, 32 bytes instead of 200 kB.

        Args:
            tokens: sequences [rows, longest], padded on the right.
            rows: of each target, the sequence that predicts it.
            places: of each target, the place there after which it comes.
            targets: what is to be scored.
        """
        hidden = self._through(tokens)
        mine = None
        if hidden is not None:
            hidden, targets = hidden[rows.to(self.device), places.to(self.device)], targets.to(self.device)
            first = self.last.index(self.rank) * self.model.wte.weight.shape[0]
            own = self.model.wte.weight[: max(0, self.shape.vocab - first)]
            pieces = zip(hidden.split(LOGIT_ROWS), targets.split(LOGIT_ROWS), strict=True)
            mine = torch.cat([_scored(F.linear(x, own).float(), target - first, first) for x, target in pieces]).cpu()
        found = self._collect(mine, (len(targets), 4), torch.float64)
        if found is None:
            return None
        top, total, picked, best = torch.stack(found).unbind(2)
        largest, of = top.max(0)
        whole = (total * (top - largest).exp()).sum(0)
        greedy = best.gather(0, of[None])[0] == targets.cpu()
        return torch.stack((picked.amax(0) - largest - whole.log(), greedy.double()), 1)

    def _through(
        self, tokens: Tensor, cache: Sequence[Prefill | Step] | None = None, positions: Tensor | None = None
    ) -> Tensor | None:
        """The last hidden states [rows, length, hidden] where the model ends; None on the stages before."""
        if self.model.begins:
            x = tokens.to(self.device)
        else:
            x = torch.empty(*tokens.shape, self.shape.hidden, device=self.device)
            dist.recv(x, group=self.line, group_src=self.stage - 1)
        x = self.model.hidden(x, cache, positions)
        if self.model.ends:
            return x
        dist.send(x.contiguous(), group=self.line, group_dst=self.stage + 1)
        return None

    def _home(self, hidden: Tensor | None, rows: int) -> Tensor | None:
        """Logits [rows, vocab] on rank 0, from hidden states [rows, hidden] that the last stage has; None elsewhere."""
        mine = None if hidden is None else F.linear(hidden, self.model.wte.weight).float().cpu()
        found = self._collect(mine, (rows, self.shape.padded_vocab // self.layout.tp), torch.float32)
        return None if found is None else torch.cat(found, 1)[:, : self.shape.vocab]

    def _collect(self, mine: Tensor | None, size: tuple[int, int], dtype: torch.dtype) -> list[Tensor] | None:
        """What each process of the last stage has, on rank 0; None elsewhere."""
        if self.rank:
            if mine is not None:
                dist.send(mine, 0, group=self.home)
            return None
        parts = []
        for rank in self.last:
            part = mine if rank == 0 and mine is not None else torch.empty(size, dtype=dtype)
            if rank:
                dist.recv(part, rank, group=self.home)
            parts.append(part)
        return parts

    def _cache(self, rows: int, context: int) -> Cache:
        heads = self.shape.heads // self.layout.tp
        layers = len(self.model.blocks)
        return Cache(layers, heads, self.shape.head_dim, rows, context, torch.float32, self.device)


def _scored(logits: Tensor, column: Tensor, first: int) -> Tensor:
    """Of a part of the vocabulary that begins at `first`: largest logit, sum of exp(logit - largest), the target's
    logit (-inf where it is elsewhere) and the likeliest token, float64 [rows, 4]."""
    if not logits.shape[1]:  # a part that is all padding
        return logits.new_tensor([-torch.inf, 0, -torch.inf, -1], dtype=torch.float64).repeat(len(logits), 1)
    top, best = logits.max(1)
    here = (column >= 0) & (column < logits.shape[1])
    picked = logits.gather(1, column.where(here, 0)[:, None])[:, 0].masked_fill(~here, -torch.inf)
    total = (logits - top[:, None]).exp().sum(1)
    return torch.stack((top.double(), total.double(), picked.double(), (best + first).double()), 1)
