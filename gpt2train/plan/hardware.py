"""Assumptions of a plan about the machines. Every number is a setting; the defaults are from data sheets."""

from pydantic import Field, PositiveInt

from gpt2train.settings import Settings

GB = 1_000_000_000
MAX_GPUS = 1_000_000  # all of their divisors are tried as degrees


class Hardware(Settings):
    """GPUs and their interconnects. The defaults describe machines with 8 H100 or H200 SXM GPUs."""

    gpus: int = Field(8, ge=1, le=MAX_GPUS)
    """GPUs of the job."""
    gpus_per_node: PositiveInt = 8
    """GPUs per machine; tensor parallelism stays within a machine."""
    memory: float = Field(80.0, gt=0)
    """Memory of one GPU in GB (10^9 bytes)."""
    reserve: float = Field(0.08, ge=0, lt=1)
    """Fraction of the memory reserved for the CUDA context, NCCL and allocator fragmentation."""
    tflops: float = Field(989.0, gt=0)
    """Dense peak of one GPU in the run's precision, TFLOP/s."""
    efficiency: float = Field(0.45, gt=0, le=1)
    """Fraction of the peak that a single H100 reaches at 345M on large micro-batches (llm.c: 46 %); what other sizes
    and cards reach follows from it and from the bandwidths."""
    link: float = Field(450.0, gt=0)
    """Bandwidth of one GPU to the others of its machine, GB/s, one direction (NVLink 4; PCIe 4: about 25)."""
    network: float = Field(50.0, gt=0)
    """Bandwidth of one GPU to other machines, GB/s, one direction (400 Gb/s InfiniBand)."""
    host: float = Field(55.0, gt=0)
    """Bandwidth between a GPU and the CPU's memory, GB/s, one direction (PCIe 5 x16)."""
    bandwidth: float = Field(3350.0, gt=0)
    """Bandwidth of the GPU's memory, GB/s (H100; H200: 4,800)."""
    price: float = Field(0.0, ge=0)
    """Price of one GPU for an hour, in any currency; 0 shows no cost."""
    cpu_bandwidth: float = Field(30.0, gt=0)
    """Bandwidth of the CPU's memory per GPU, GB/s, which bounds AdamW with offload."""
