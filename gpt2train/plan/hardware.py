"""What a plan assumes of the machines. Every number can be given; the defaults are the makers' data sheets."""

from pydantic import Field, PositiveInt

from gpt2train.settings import Settings

GB = 1_000_000_000


class Hardware(Settings):
    """GPUs, and what lies between them. The defaults describe H100 or H200 SXM machines of 8 GPUs."""

    gpus: PositiveInt = 8
    """GPUs of the job."""
    gpus_per_node: PositiveInt = 8
    """GPUs of one machine; tensor parallelism stays within it."""
    memory: float = Field(80.0, gt=0)
    """GB (10^9 bytes) of one GPU."""
    reserve: float = Field(0.08, ge=0, lt=1)
    """Share of the memory that is left to the CUDA context, to NCCL and to the allocator's gaps."""
    tflops: float = Field(989.0, gt=0)
    """Dense peak of one GPU in the run's precision, TFLOP/s."""
    efficiency: float = Field(0.45, gt=0, le=1)
    """Share of the peak that a GPU reaches alone on large micro-batches (llm.c: 46 % at 345M on an H100)."""
    link: float = Field(450.0, gt=0)
    """GB/s of one GPU to the others of its machine, one direction (NVLink 4; PCIe 4: about 25)."""
    network: float = Field(50.0, gt=0)
    """GB/s of one GPU to other machines, one direction (400 Gb/s InfiniBand)."""
    host: float = Field(55.0, gt=0)
    """GB/s between a GPU and the CPU's memory, one direction (PCIe 5 x16)."""
    bandwidth: float = Field(3350.0, gt=0)
    """GB/s of the GPU's own memory (H100; H200: 4,800)."""
    cpu_bandwidth: float = Field(30.0, gt=0)
    """GB/s of the CPU's memory for each GPU: what AdamW runs at under offload."""
