"""How the model lies on the processes."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from gpt2train.settings import Settings


class ParallelSettings(Settings):
    """world = tp x pp x data-parallel; what tp and pp leave over is data-parallel."""

    tp: PositiveInt = 1
    """Tensor parallelism: processes that share the matrices of each block (Megatron-LM, Shoeybi et al. 2019)."""
    sequence_parallel: bool = True
    """With tp above 1: split LayerNorm and dropout along the sequence as well (Korthikanti et al. 2022)."""
    pp: PositiveInt = 1
    """Pipeline parallelism: processes in a row that each hold some of the blocks."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """Order of the micro-batches in the pipeline."""
    stages: PositiveInt = 1
    """Pieces of the model that each pipeline process holds; above 1 with the interleaved schedule only."""
    zero: Literal[0, 1, 2, 3] = 0
    """What is sharded over the data-parallel processes (ZeRO): 0 nothing, 1 optimizer state, 2 + gradients,
    3 + parameters."""
    shard: NonNegativeInt = 0
    """Processes over which ZeRO shards, the rest replicates (hybrid); 0 shards over all data-parallel ones."""
    offload: bool = False
    """Parameters, gradients and optimizer state live in the CPU's memory, and AdamW runs there (ZeRO-Offload)."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What of a block is computed again in the backward pass: nothing, the cheap parts, everything."""
