"""Parallelism settings."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from gpt2train.settings import NaturalNumber, PositiveNumber, Settings

# Processes of a kind of parallelism. 0 and 1 turn it off, as in CPM's and DeepSpeed's launch scripts.
Degree = Annotated[NaturalNumber, AfterValidator(lambda degree: degree or 1)]


class ParallelSettings(Settings):
    """Parallelism degrees: world size = tp x pp x data-parallel degree, which follows from the other two."""

    tp: Degree = 1
    """Tensor parallelism: processes that share the matrices of each block (Megatron-LM, Shoeybi et al. 2019). 0 or 1:
    none."""
    sequence_parallel: bool = True
    """With tp above 1: split LayerNorm and dropout along the sequence as well (Korthikanti et al. 2022)."""
    pp: Degree = 1
    """Pipeline parallelism: processes over which the blocks are split. 0 or 1: none."""
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """Pipeline schedule: the order of the micro-batches."""
    virtual_pipeline_stages: PositiveNumber = 1
    """Pipeline stages per process; above 1 with the interleaved schedule only."""
    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage, sharded over the data-parallel processes: 0 nothing, 1 optimizer state, 2 also gradients,
    3 also parameters."""
    dp_shard_degree: NaturalNumber = 0
    """Processes over which ZeRO shards; groups of this size are replicated (hybrid sharding). 0 shards over all
    data-parallel processes."""
    cpu_offload: bool = False
    """Keep training state in CPU memory and run AdamW there; `offload_placement` says which state."""
    offload_placement: Literal["all", "optimizer", "auto"] = Field("all", exclude_if=lambda given: given == "all")
    """With `cpu_offload`: `all` keeps parameters, gradients and optimizer state in CPU memory, and one block at a time
    on the device. `optimizer` keeps the optimizer state alone there (ZeRO-Offload). `auto` is `optimizer`, but after
    the first step the device takes as much of that state as fits; if the weights do not fit, it is `all`."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Activations of a block recomputed in the backward pass: none, those that are cheap to compute, or all."""

    @field_validator("zero", mode="before")
    @classmethod
    def _as_number(cls, zero: Any) -> Any:
        """Accept the text of a number, as the flag `--train.parallel.zero 1` of a flow gives it."""
        return int(zero) if isinstance(zero, str) and zero.isdecimal() else zero

    @model_validator(mode="after")
    def _placement_is_used(self) -> "ParallelSettings":
        if self.offload_placement != "all" and not self.cpu_offload:
            raise ValueError(f"offload_placement {self.offload_placement!r} needs cpu_offload = true")
        return self

    @property
    def offloads_weights(self) -> bool:
        """True if parameters and gradients are in CPU memory too."""
        return self.cpu_offload and self.offload_placement == "all"
