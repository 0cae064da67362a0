"""Private parts of torch for a step that computes nothing: fake process group, dispatch mode, buffers of FSDP.

Each is held against a real run by tests/gpt2train/simulate. The range of torch is `gpt2train.compat.torch.TORCH`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

DispatchMode = TorchDispatchMode  # documented by torch only in notes; breaks with an error at import

# Nested arguments of operators. Breaks with an error at import.
tree_flatten, tree_unflatten = _pytree.tree_flatten, _pytree.tree_unflatten
tree_leaves, tree_map_only = _pytree.tree_leaves, _pytree.tree_map_only

# Attention of a GPU that keeps no matrix of context x context, also with a bias that needs a gradient. Breaks with an
# error at import.
efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention

# Operators that return a tensor on the memory of an argument, though their schema does not say so.
# Breaks when one is added: its result counts as new memory, and tests/gpt2train/simulate/test_against_runs.py fails.
HIDDEN_VIEWS = frozenset(
    {
        torch.ops.aten._unsafe_view.default,
        torch.ops.aten._reshape_alias.default,
        torch.ops.aten.lift_fresh.default,
        torch.ops._c10d_functional.wait_tensor.default,
    }
)


def join_fake_group(rank: int, world: int) -> None:
    """Create a default process group of `world` ranks whose collectives send nothing and return at once.

    Breaks when torch's own tests get another fake backend, with an error at once.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def leave_fake_group() -> None:
    """Remove the default process group and what DTensor has cached about its groups.

    DTensor takes the meshes of two ranks for equal, and would answer for one with the groups of the other. Breaks when
    it caches elsewhere, with an error at the first collective of the second rank.
    """
    dist.destroy_process_group()
    _clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()


def in_shape_propagation(types: Sequence[type]) -> bool:
    """Return True inside of torch's own `FakeTensorMode`, by which DTensor finds the sizes of its results.

    Breaks when DTensor finds them in another way, with an error while the model is built.
    """
    return FakeTensor in types or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def group_of(arguments: Any) -> dist.ProcessGroup:
    """Return the process group among the arguments of a `c10d` operator.

    Breaks when torch passes it in another way, with an error at the first collective.
    """
    found = [x for x in arguments if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type())]
    return dist.ProcessGroup.unbox(found[0])


def answer_vote(func: Any, arguments: Any) -> None:
    """Answer the vote of torch's pipeline stages, who send each other 1 if they know the shapes of what is sent.

    `gpt2train.parallel.pipeline` gives all shapes, so that all vote so. Breaks when the vote is another one, with an
    error at the first step: stages would receive shapes from each other.
    """
    if func.name() == "c10d::recv_":
        for tensor in arguments[0]:
            if tensor.numel() == 1 and not tensor.is_floating_point():
                tensor.fill_(1)


def copy_in(arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the result of FSDP's operator that fills its part of an all-gather's output, without filling it.

    Breaks when the operator's arguments change, with an error at the first all-gather.
    """
    _, output, _, count, rank = arguments
    return output.narrow(0, count * rank, count), output


@contextlib.contextmanager
def on_stage_passes(context: Callable[[bool, int], AbstractContextManager[None]]) -> Iterator[None]:
    """Run each pass of a micro-batch through a stage of a torch pipeline in a context.

    Breaks when the schedules call other methods of a stage, with an error: no pass would be seen. The context is a
    function of True for a forward pass, and of the number of the stage.
    """

    def inside(work: Callable[..., Any], forward: bool) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            with context(forward, self.stage_index):
                return work(self, *args, **kwargs)

        return run

    methods = {"forward_one_chunk": True, "backward_one_chunk": False}
    kind = PipelineStage.__mro__[1]  # which has both
    with contextlib.ExitStack() as patches:
        for name, forward in methods.items():
            patches.enter_context(mock.patch.object(kind, name, inside(getattr(kind, name), forward)))
        yield


def shallow_1f1b(depth: int) -> type[Schedule1F1B]:
    """Return the 1F1B schedule of a stage at another place of a pipeline.

    Breaks when the schedule takes its place from elsewhere, with an error: it refuses fewer micro-batches than stages.
    The depth is the number of stages from this one to the last.
    """

    class Shallow(Schedule1F1B):
        def __init__(self, stage: Any, *args: Any, **kwargs: Any) -> None:
            stages = stage.num_stages
            stage.num_stages = stage.stage_index + depth
            kwargs["n_microbatches"] = max(args[0], stage.num_stages)
            super().__init__(stage, **kwargs)
            self._n_microbatches = args[0]
            stage.num_stages = stages

    return Shallow


@contextlib.contextmanager
def on_resize(report: Callable[[Tensor], None]) -> Iterator[None]:
    """Report each tensor of FSDP whose storage was resized: gathered parameters, which it allocates and frees so.

    Breaks when FSDP frees its buffers in another way: gathered parameters would count as living to the end of the step.
    """

    def reporting(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def resized(tensor: Tensor) -> None:
            resize(tensor)
            report(tensor)

        return resized

    alloc, free = reporting(_fsdp_param.alloc_storage), reporting(_fsdp_param.free_storage)
    with (
        mock.patch.object(_fsdp_param, "alloc_storage", alloc),
        mock.patch.object(_fsdp_param, "free_storage", free),
        mock.patch.object(_fsdp_param_group, "alloc_storage", alloc),
    ):
        yield
