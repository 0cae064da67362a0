"""One rank's shard of a distributed model for inference: some layers, and in each layer some heads.

Every rank receives the same calls in the same order (`gpt2train.inference.distributed_decoder`). Hidden states are sent
from stage to stage, the layers all-reduce over the tensor-parallel group, which gathers the logits of its parts of the
vocabulary, and the last stage sends them to rank 0. A model with an encoder has one stage.

Peak memory of a rank while it reads its shard is the shard in float32 plus two copies of its largest tensor, not the
whole model: with 124M parameters on 2 x 2 ranks, 0.2 GB plus 0.3 GB for the token embedding. Pages of the memory-mapped
file come on top; the kernel can reclaim them.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt2train.inference.decoder import LocalDecoder
from gpt2train.model.cache import Prefill, Step
from gpt2train.model.causal_lm import CausalLM
from gpt2train.model.families import shard_dim, sizes
from gpt2train.model.lazy_weights import LazyWeights, check_sizes, empty_model
from gpt2train.model.shape import Shape
from gpt2train.parallel.layout import Layout
from gpt2train.parallel.mesh import PIPELINE, TENSOR, DistContext, make_mesh
from gpt2train.parallel.pipeline_stages import stage_layers
from gpt2train.parallel.tensor_parallel import apply_tensor_parallel
from gpt2train.parallel.uneven_heads import used_rows


class ModelShard:
    """Layers of this rank, and their decoder; a collective object that every rank creates.

    Args:
        shape: shape of the whole model.
        layout: parallel layout of all ranks.
        dist_context: distributed context of this rank; its timeout applies to every communication.

    Attributes:
        model: layers of this rank, with the methods of the whole model; logits and log-probabilities are on rank 0.
    """

    decoder: LocalDecoder

    def __init__(self, shape: Shape, layout: Layout, dist_context: DistContext) -> None:
        self.shape, self.tp, self.device = shape, layout.tp, dist_context.device
        mesh = make_mesh(dist_context, layout)
        self.tp_rank, self.stage = mesh[TENSOR].get_local_rank(), mesh[PIPELINE].get_local_rank()
        self.layers = stage_layers(shape, layout.pp)[self.stage]
        self.model = empty_model(shape).keep_layers(self.layers).eval()
        apply_tensor_parallel(self.model, mesh[TENSOR], sequence_parallel=False)
        if layout.pp > 1:
            _connect(self.model, mesh[PIPELINE].get_group(), self.stage, layout.pp, self.tp_rank == 0)

    def open(self, rows: int, context: int) -> None:
        """Create an empty decoder for `rows` sequences of up to `context` tokens."""
        self.decoder = LocalDecoder(self.model, rows, context, whole=False)

    def read(self, weights: LazyWeights) -> None:
        """Read the weights of this shard only, from those of the whole model.

        Raises:
            UserError: the weights do not have this shape, or cannot be read.
        """
        for name, weight in read_shard(weights, self.layers, self.tp, self.tp_rank).items():
            module, _, last = name.rpartition(".")
            # Plain tensors instead of DTensors: no dispatch overhead, and the layers accept both.
            parameter = nn.Parameter(weight.to(self.device), requires_grad=False)
            setattr(self.model.get_submodule(module), last, parameter)


def _connect(model: CausalLM, group: dist.ProcessGroup, stage: int, stages: int, leads: bool) -> None:
    """Have a pipeline stage receive and send hidden states, and the first one receive the results of the last one.

    `leads` is True in the pipeline of rank 0, whose first stage needs the results.
    """
    compute, compute_logits, compute_log_probs = model.hidden, model.logits, model.log_probs

    def hidden(
        tokens: Tensor, cache: Sequence[Prefill | Step] | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Hidden states of this stage [rows, length, hidden]; they are the last ones on the last stage."""
        x = tokens
        if stage > 0:
            x = torch.empty(*tokens.shape, model.shape.hidden, device=tokens.device)
            dist.recv(x, group=group, group_src=stage - 1)
        x = compute(x, cache, positions, ids=tokens)
        if stage < stages - 1:
            dist.send(x.contiguous(), group=group, group_dst=stage + 1)
        return x

    def received(found: Tensor) -> Tensor:
        """Send what the last stage has found to the first one, where `found` has its size."""
        if leads and stage == stages - 1:
            dist.send(found.contiguous(), group=group, group_dst=0)
        elif leads and stage == 0:
            dist.recv(found, group=group, group_src=stages - 1)
        return found

    def logits(x: Tensor) -> Tensor:
        return received(compute_logits(x) if model.has_head else x.new_empty(*x.shape[:-1], model.shape.vocab))

    def log_probs(x: Tensor, targets: Tensor, *more: object, **options: object) -> tuple[Tensor, Tensor]:
        pair = torch.empty(2, len(targets), device=x.device)
        if model.has_head:
            values, greedy = compute_log_probs(x, targets, *more, **options)  # type: ignore[arg-type]
            pair = torch.stack((values, greedy.float()))
        values, greedy = received(pair)
        return values, greedy > 0

    model.hidden, model.logits, model.log_probs = hidden, logits, log_probs  # type: ignore[method-assign, assignment]


def read_shard(weights: LazyWeights, layers: range, tp: int, rank: int) -> dict[str, Tensor]:
    """Read the weights of one shard in float32 on the CPU, split as `gpt2train.parallel.tensor_parallel` does.

    Of a layer whose heads the degree does not divide, the rows of this rank's heads are read (`uneven_heads`).

    Args:
        weights: weights of the whole model; tensors of other shards are not read.
        layers: layers of this rank; the first one includes the embeddings, the last one the head.
        tp: tensor-parallel degree.
        rank: tensor-parallel rank.

    Raises:
        UserError: a tensor is missing, unexpected, of the wrong size, or unreadable.
    """
    check_sizes({name: stored.size for name, stored in weights.tensors.items()}, sizes(weights.shape), "the model")
    local = empty_model(weights.shape).keep_layers(layers)

    def own_part(name: str) -> Tensor:
        whole, dim = weights.tensors[name].read(torch.float32), shard_dim(name, weights.shape)
        if tp == 1 or dim is None:
            return whole
        used = used_rows(local, name, weights.shape, tp)
        own = whole.chunk(tp, dim)[rank] if used is None else whole.narrow(dim, used[rank].start, len(used[rank]))
        # A clone, since a view would keep the whole tensor in memory.
        return own.clone(memory_format=torch.contiguous_format)

    return {name: own_part(name) for name, _ in local.named_parameters()}
