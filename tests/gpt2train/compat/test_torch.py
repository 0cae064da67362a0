"""Private parts of torch against the plain way, also its products of 8-bit matrices."""

import contextlib
import importlib
import pickle
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from packaging.specifiers import SpecifierSet
from torch import Tensor
from torch.distributed.distributed_c10d import Work
from torch.utils._python_dispatch import TorchDispatchMode

from gpt2train.compat import torch_fp8
from gpt2train.compat.torch import (
    ATTENTION_OPERATORS,
    CHECKPOINT_METADATA_NAMES,
    TORCH,
    around_waits,
    can_pack_linear,
    dump_memory,
    layer_norm_backward,
    pack_linear,
    record_memory,
    tensor_norms,
)
from gpt2train.compat.torch_fp8 import SCALED_PRODUCT, as_own_tensor, scaled_bias, scaled_product
from gpt2train.parallel.mesh import DistContext

ROOT = Path(__file__).parents[3]


def test_the_range_is_that_of_the_project() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"torch{TORCH}" in dependencies
    assert torch.__version__.partition("+")[0] in SpecifierSet(TORCH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_norms(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in ((3,), (4, 5), (1,), (2, 3, 4))]
    tensors.append(torch.tensor([1.0, float("inf")], dtype=dtype))
    expected = torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])
    torch.testing.assert_close(tensor_norms(tensors), expected)


@pytest.mark.skipif(not can_pack_linear(torch.zeros(1)), reason="this torch has no packed product of oneDNN")
@pytest.mark.parametrize("rows", [1, 3, 8, 20])
@pytest.mark.parametrize("biased", [True, False])
def test_pack_linear(rows: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight, x = torch.randn(48, 32, generator=generator), torch.randn(rows, 32, generator=generator)
    bias = torch.randn(48, generator=generator) if biased else None
    torch.testing.assert_close(pack_linear(weight, bias, rows=8)(x), F.linear(x, weight, bias))


def test_layer_norm_backward() -> None:
    x, weight = torch.randn(3, 5, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    grad = torch.randn(3, 5, 16)
    mean, scale = x.detach().mean(-1, True), (x.detach().var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    expected = torch.autograd.grad(F.layer_norm(x, (16,), weight), (x, weight), grad)
    found = layer_norm_backward(grad, x.detach(), mean, scale, weight.detach())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_around_waits(alone: DistContext) -> None:
    waits: list[str] = []
    plain = Work.wait

    @contextlib.contextmanager
    def note() -> Iterator[None]:
        waits.append("begin")
        yield
        waits.append("end")

    one, two, three = torch.ones(3), torch.ones(3), torch.empty(3)
    with around_waits(note):
        dist.all_reduce(one)
        dist.all_reduce(two, async_op=True).wait()
        dist.all_gather([three], one)
    assert waits == ["begin", "end"] * 3 and Work.wait is plain
    dist.barrier()
    assert len(waits) == 6
    assert torch.equal(one, two) and torch.equal(one, three)


def test_only_float32_on_a_cpu_can_be_packed() -> None:
    assert not can_pack_linear(torch.zeros(1, dtype=torch.bfloat16))
    assert not can_pack_linear(torch.zeros(1, device="meta"))


def test_the_operators_of_attention_are_all_that_torch_has() -> None:
    """But the ones of a math fallback, which is made of public operators, and the backward passes."""
    seen: list[Any] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    query = torch.randn(1, 2, 8, 16, requires_grad=True)
    with Recorder():
        F.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert [operator for operator in seen if operator in ATTENTION_OPERATORS]  # that of this CPU
    names = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    fused = {name for name in names if name.startswith("aten::_scaled_dot_product_") and "backward" not in name}
    ours = {operator.name().split(".")[0] for operator in ATTENTION_OPERATORS}
    assert {name for name in fused if "math" not in name and "quantized" not in name} == ours


def test_the_names_in_checkpoint_metadata(tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.bfloat16)}, checkpoint_id=tmp_path, no_dist=True)
    found: set[tuple[str, str]] = set()

    class Recorder(pickle._Unpickler):  # type: ignore[name-defined,misc]  # the one in Python
        def find_class(self, module: str, name: str) -> Any:
            found.add((module, name))
            return super().find_class(module, name)

    with (tmp_path / ".metadata").open("rb") as file:
        Recorder(file).load()
    assert {(module, name) for module, name in found if name.startswith("_")} <= CHECKPOINT_METADATA_NAMES
    for module, name in CHECKPOINT_METADATA_NAMES:
        assert hasattr(importlib.import_module(module), name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_history(tmp_path: Path) -> None:
    record_memory()
    held: Tensor = torch.zeros(1 << 20, device="cuda")
    dump_memory(tmp_path / "memory.pickle")
    snapshot = pickle.loads((tmp_path / "memory.pickle").read_bytes())  # noqa: S301 - just written
    events = [event for trace in snapshot["device_traces"] for event in trace]
    assert any(event["size"] >= held.nbytes for event in events if event["action"] == "alloc")


def test_nothing_else_takes_private_names_of_torch() -> None:
    private = re.compile(r"\b(?:torch|dist|F|dcp)\.(?:\w+\.)*_[a-z]\w*|from torch[\w.]* import [^\n]*\b_[a-zA-Z]")
    files = [file for file in (ROOT / "gpt2train").rglob("*.py") if "compat" not in file.parts]
    assert len(files) > 100
    assert not [(file.name, found) for file in files for found in private.findall(file.read_text())]


GENERATOR = torch.Generator().manual_seed(1)
A = torch.randn(32, 64, generator=GENERATOR)
B = torch.randn(48, 64, generator=GENERATOR)
BIAS = torch.randn(48, generator=GENERATOR).bfloat16()
SCALES = {"tensor": (torch.tensor(0.5), torch.tensor(3.0)), "rows": (torch.rand(32, 1) + 0.1, torch.rand(1, 48) + 0.1)}


class Calls(TorchDispatchMode):
    """Arguments of the products."""

    def __init__(self) -> None:
        super().__init__()
        self.biases: list[Tensor | None] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is SCALED_PRODUCT:
            self.biases.append(scaled_bias(args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("scales", SCALES)
def test_products_are_those_in_float32(
    monkeypatch: pytest.MonkeyPatch, scales: str, bias: Tensor | None, dtype: torch.dtype, native: bool
) -> None:
    if native and not torch_fp8.CPU_HAS_ROW_SCALES:
        pytest.skip("this torch has no row-wise scales on a CPU")
    monkeypatch.setattr(torch_fp8, "CPU_HAS_ROW_SCALES", native)
    a, b = A.to(dtype), B.to(torch.float8_e4m3fn).t()
    one, other = SCALES[scales]
    expected = (a.float() * one) @ (b.float() * other) + (0 if bias is None else bias.float())
    for autocast in (False, True):  # which must not round the sums
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = scaled_product(a, one, b, other, bias, fast_sums=True)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), expected, rtol=2.0**-8, atol=1e-5)


@pytest.mark.parametrize("bias", [None, BIAS])
def test_a_policy_sees_the_product_and_its_bias(bias: Tensor | None) -> None:
    with Calls() as calls:
        scaled_product(A.to(torch.float8_e4m3fn), *SCALES["tensor"][:1], B.to(torch.float8_e4m3fn).t(),
                       SCALES["tensor"][1], bias, fast_sums=False)  # fmt: skip
    assert len(calls.biases) == 1 and (calls.biases[0] is None) == (bias is None)


def test_an_own_tensor_can_be_changed_in_place_by_a_function() -> None:
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, own):  # type: ignore[no-untyped-def]
            y = x * 2
            return as_own_tensor(y, (2, 8)) if own else y.view(2, 8)

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad.reshape(16) * 2, None

    x = torch.ones(16, requires_grad=True)
    y = Made.apply(x, True)
    y.mul_(3)
    y.sum().backward()
    assert x.grad is not None and (x.grad == 6).all()
    with pytest.raises(RuntimeError, match="view"):
        Made.apply(x, False).mul_(3)
