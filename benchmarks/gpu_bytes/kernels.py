"""Kernels of a compiled graph: bytes read and written, FLOPs of products, as inductor counts them.

A buffer counts once per kernel: a reduction that passes over a row twice finds it in the cache the second time (a row
of logits is 100 kB, the cache of an H100 50 MB). A lookup counts the rows that it reads, not the table.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

Kernels = Counter["Kernel"]  # number of launches of each


@dataclass(frozen=True)
class Kernel:
    """A kernel of a step.

    Attributes:
        phase: "forward", "backward" or "optimizer".
        name: operations in it.
        kind: "product", "attention" or "pointwise".
        read: bytes read.
        written: bytes written.
        flops: FLOPs of a product, or of an attention without the upper triangle.
        shape: rows, inner and columns of a product.
    """

    phase: str
    name: str
    kind: str
    read: float
    written: float
    flops: float = 0.0
    shape: tuple[int, ...] = ()

    @property
    def bytes(self) -> float:
        """Bytes moved."""
        return self.read + self.written


def kernels_of(graph: Any) -> Kernels:
    """Return the kernels of an inductor graph (`GraphLowering`) after code generation."""
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
    from torch._inductor.virtualized import V

    phase = "backward" if graph.is_backward else "forward"
    found = Kernels()
    with V.set_graph_handler(graph):
        for node in graph.scheduler.nodes:
            if isinstance(node, NopKernelSchedulerNode):
                continue
            if isinstance(node, ExternKernelSchedulerNode):
                kernel = _extern(phase, node)
            else:
                kernel = _generated(phase, node)
            if kernel is not None:
                found[kernel] += 1
    return found


def peak_bytes(graph: Any) -> int:
    """Return the most bytes that a graph holds at once beside parameters, by inductor's own account of its buffers."""
    from torch._inductor.memory import compute_memory_timeline, get_freeable_input_buf
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    with V.set_graph_handler(graph):
        nodes = graph.scheduler.nodes
        # The inputs of a backward are what the forward has saved; those of a forward are parameters, which stay.
        freed = get_freeable_input_buf(nodes, OrderedSet(graph.graph_inputs)) if graph.is_backward else {}
        buffers = compute_memory_timeline(nodes, freed, OrderedSet(graph.get_output_names()))[0]
    changes = [0] * (len(nodes) + 1)
    for one in buffers:
        last = len(nodes) - 1 if one.end_step < 0 else one.end_step  # an output stays; inductor's own sum drops it
        changes[one.start_step] += one.size_alloc
        changes[last + 1] -= one.size_free
    return max(itertools.accumulate(changes))


def _generated(phase: str, node: Any) -> Kernel:
    """Kernel that inductor writes itself."""
    from torch._inductor.utils import get_fused_kernel_name

    nodes = list(node.get_nodes())
    name = get_fused_kernel_name(nodes, "original_aten").removeprefix("fused_")
    read, written = _accessed(node, reads=True), _accessed(node, reads=False)
    return Kernel(phase, name, "pointwise", read, written)


def _accessed(node: Any, reads: bool) -> float:
    """Bytes of a kernel's reads or writes, each buffer once and at most as often as the kernel's loops access it."""
    from torch._inductor.utils import sympy_product
    from torch._inductor.virtualized import V

    buffers = node.get_read_write_buffer_accesses(include_reads=reads, include_writes=not reads)
    looked_up = Counter[str]()  # elements that lookups read or write, by buffer
    direct = set()
    for one in node.get_nodes():
        for dep in one.read_writes.reads if reads else one.read_writes.writes:
            if getattr(dep, "is_indirect", lambda: False)():
                looked_up[dep.name] += int(V.graph.sizevars.optimization_hint(sympy_product(dep.size)))
            else:
                direct.add(dep.name)
    total = 0.0
    for name, size in buffers.items():
        if name in looked_up and name not in direct:
            size = min(size, looked_up[name] * V.graph.get_dtype(name).itemsize)
        total += size
    return total


def _extern(phase: str, node: Any) -> Kernel | None:
    """Call of a library: a product or attention; None for a part of the result of another call."""
    from torch._inductor.ir import MultiOutput

    if isinstance(node.node, MultiOutput):
        return None
    name = str(getattr(node.node, "python_kernel_name", None) or node.node.get_origins())
    read, written = node.get_read_buffer_sizes(), node.get_write_buffer_sizes()
    inputs = [[int(size) for size in one.get_size()] for one in node.node.inputs if hasattr(one, "get_size")]
    if "attention" in name:
        batch, heads, length, width = next(size for size in inputs if len(size) == 4)
        products = 5 if "backward" in name else 2
        written = (3 if "backward" in name else 1) * batch * heads * length * width * 2
        flops = products * batch * heads * length * length * width  # half of 2 products x 2 FLOPs
        return Kernel(phase, name.rpartition("::")[2], "attention", read, written, flops)
    matrices = [size for size in inputs if len(size) == 2][-2:]
    if len(matrices) == 2 and ("mm" in name or "product" in name):
        (rows, inner), (_, columns) = matrices
        shape = (rows, inner, columns)
        return Kernel(phase, name.rpartition(".")[2], "product", read, written, 2.0 * math.prod(shape), shape)
    return Kernel(phase, name, "pointwise", read, written)
