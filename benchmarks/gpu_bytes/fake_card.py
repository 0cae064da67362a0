"""An H100 that only torch's compiler sees, so that it generates CUDA code on a machine without a GPU.

Tensors are fake, and the compiler asks a GPU for its properties alone. torch's CUDA build also calls the driver, for
the current device and for streams and events of the autograd engine: small stubs, compiled by gcc, take those calls.
`with_stubs` starts the command again with them. Private parts of torch 2.11.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

STUBS = "GPT2TRAIN_CUDA_STUBS"  # environment variable: their folder
# Each returns success; the first argument, if it is an output, becomes the second number.
RUNTIME = {
    "cudaGetDevice(int *x)": "*x = 0;",
    "cudaSetDevice(int x)": "",
    "cudaGetDeviceCount(int *x)": "*x = 1;",
    "cudaGetLastError(void)": "",
    "cudaPeekAtLastError(void)": "",
    "cudaDeviceGetStreamPriorityRange(int *x, int *y)": "*x = 0; *y = 0;",
    "cudaStreamIsCapturing(void *x, int *y)": "*y = 0;",
    "cudaStreamQuery(void *x)": "",
    "cudaStreamSynchronize(void *x)": "",
    "cudaStreamWaitEvent(void *x, void *y, unsigned z)": "",
    "cudaEventCreateWithFlags(void **x, unsigned y)": "*x = (void *)8;",
    "cudaEventRecord(void *x, void *y)": "",
    "cudaEventRecordWithFlags(void *x, void *y, unsigned z)": "",
    "cudaEventQuery(void *x)": "",
    "cudaEventDestroy(void *x)": "",
    "_ZN3c104cuda14MaybeSetDeviceEa(signed char x)": "",  # c10::cuda::MaybeSetDevice
    "_ZN3c104cuda17hasPrimaryContextEa(signed char x)": "return 1;",
}
DRIVER = {
    "cuInit(unsigned x)": "",
    "cuDeviceGet(int *x, int y)": "*x = 0;",
    "cuDevicePrimaryCtxGetState(int x, unsigned *y, int *z)": "*y = 0; *z = 1;",
    "cuDevicePrimaryCtxRetain(void **x, int y)": "*x = (void *)8;",
    "cuCtxGetCurrent(void **x)": "*x = (void *)8;",
    "cuCtxSetCurrent(void *x)": "",
    "cuGetErrorString(int x, const char **y)": '*y = "stub";',
}
CARD = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=85_000_000_000,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2_048,
    max_threads_per_block=1_024,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
    clock_rate=1_980_000,
    memory_clock_rate=2_619_000,
    memory_bus_width=5_120,
)


def missing() -> str:
    """Say what this machine lacks; empty if nothing."""
    import torch

    if not torch.version.cuda:
        return "torch is not built for CUDA"
    if torch.cuda.is_available() and STUBS not in os.environ:
        return "there is a GPU; use benchmarks.gpu"
    if not torch.__version__.startswith("2.11."):
        return f"torch {torch.__version__} is not 2.11, whose private parts this reads"
    return "" if shutil.which("gcc") else "gcc is not installed"


def with_stubs() -> None:
    """Replace this process by one that has the stubs, unless it is that one."""
    if STUBS in os.environ:
        shutil.rmtree(os.environ[STUBS], ignore_errors=True)  # they are loaded
        os.environ.pop("LD_PRELOAD", None)
        return
    folder = Path(tempfile.mkdtemp(prefix="cuda-stubs-"))
    for name, functions in (("runtime.so", RUNTIME), ("libcuda.so.1", DRIVER)):
        code = "".join(f"int {head} {{ {body} return 0; }}\n" for head, body in functions.items())
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", str(folder / name)]
        subprocess.run(command, input=code, text=True, check=True)
    preload = f"{folder / 'libcuda.so.1'}:{folder / 'runtime.so'}"
    environment = os.environ | {STUBS: str(folder), "LD_PRELOAD": preload, "PYTHONWARNINGS": "ignore"}
    module = sys.modules["__main__"].__spec__
    program = ["-m", module.name.removesuffix(".__main__")] if module else [sys.argv[0]]
    os.execve(sys.executable, [sys.executable, *program, *sys.argv[1:]], environment)


class _TritonDriver:
    """Driver of a GPU for triton, as far as its code generation needs one."""

    utils = types.SimpleNamespace(
        get_device_properties=lambda device: {
            "max_shared_mem": CARD.shared_memory_per_block_optin,
            "multiprocessor_count": CARD.multi_processor_count,
            "warpSize": CARD.warp_size,
            "max_num_regs": CARD.regs_per_multiprocessor,
        }
    )

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


def cudnn_attention(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, **_: Any) -> Any:
    """Attention by the kernel that the engine prefers on a GPU."""
    import torch

    attend = torch.ops.aten._scaled_dot_product_cudnn_attention
    return attend(query, key, value, None, True, dropout_p, is_causal)[0]


@contextlib.contextmanager
def fake_card(record: Callable[[Any], None]) -> Iterator[None]:
    """Let tensors be fake, on an H100, and give each compiled graph to `record` in place of running it."""
    import torch
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.fx_passes import fuse_attention, pad_mm
    from torch._inductor.graph import GraphLowering
    from torch._subclasses import fake_tensor
    from triton.runtime import driver

    def fixed(value: object) -> Callable[..., Any]:
        return lambda *_, **__: value

    def generated(graph: Any) -> types.SimpleNamespace:
        graph.codegen()
        record(graph)
        return types.SimpleNamespace(call=lambda arguments: _results(graph), __file__="none")

    replaced: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": fixed(True),
            "device_count": fixed(1),
            "current_device": fixed(0),
            "get_device_properties": fixed(CARD),
            "get_device_capability": fixed((9, 0)),
            "is_bf16_supported": fixed(True),
            "_lazy_init": fixed(None),
            "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": fixed(None),
        },
        CudaInterface: {
            "is_available": staticmethod(fixed(True)),
            "get_device_properties": staticmethod(fixed(CARD)),
            "get_compute_capability": staticmethod(fixed(90)),
        },
        CudaInterface.Worker: {"get_device_properties": staticmethod(fixed(CARD))},
        fake_tensor: {"init_gpu_context": fixed(None)},
        fuse_attention: {"_sfdp_init": fixed(None)},  # patterns, which are traced with tensors on the card
        pad_mm: {"_pad_mm_init": fixed(None)},
        torch.nn.functional: {"scaled_dot_product_attention": cudnn_attention},
        GraphLowering: {"compile_to_module": generated},
    }
    driver.set_active(_TritonDriver())
    with contextlib.ExitStack() as stack:
        for owner, values in replaced.items():
            stack.enter_context(mock.patch.multiple(owner, **values))
        stack.enter_context(
            torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1, joint_graph_constant_folding=False)
        )
        stack.enter_context(
            torch._functorch.config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True)
        )
        stack.enter_context(fake_tensor.FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _results(graph: Any) -> list[Any]:
    """Fake results of a graph."""
    import torch

    found: list[Any] = []
    for out in graph.graph_outputs:
        if not hasattr(out, "get_stride"):
            found.append(None)
            continue
        size, stride = ([int(number) for number in numbers] for numbers in (out.get_size(), out.get_stride()))
        found.append(torch.empty_strided(size, stride, dtype=out.get_dtype(), device=out.get_device()))
    return found
