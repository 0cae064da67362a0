"""Settings of a run's execution: parallelism, performance, checkpoints, logging."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from gpt2train.model.shape import COMPILED_CHUNK
from gpt2train.settings import NaturalNumber, Place, PositiveNumber, Settings

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


class PerformanceSettings(Settings):
    """Performance options. They change the speed of a run, and its results only by rounding; `fp8` rounds to 3 bits."""

    compile: Literal["auto", "on", "blocks", "off"] = "auto"
    """torch.compile; auto compiles on a GPU. A model on a single process is compiled as a whole, otherwise or with
    blocks block by block, in a time that does not grow with depth, and the loss too unless its vocabulary is split."""
    prefetch: bool = True
    """Prepare the next batches while the current one is computed."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Start the next step before the loss of the current one is read, so that the device never waits for the host; auto
    does so on a GPU. Not possible in fp16, since the loss scale depends on the previous step."""
    tf32: bool = True
    """On a GPU, use TensorFloat-32 for fp32 matrix products."""
    attention: Literal["cudnn", "flash", "efficient", "math"] = "cudnn"
    """On a GPU, the attention kernel to try first; the others follow in this order."""
    max_autotune: bool = False
    """Compile with a search for the fastest kernels, which takes some minutes at the start. Since the processes wait
    for each other meanwhile, one that hangs is detected after 30 minutes at the earliest."""
    # Left out of a run's files by default, as `fp8` is.
    stream: Literal["auto", "fp32", "bf16"] = Field("auto", exclude_if=lambda stream: stream == "auto")
    """Precision of the residual stream, the input and output of every block; bf16 needs precision bf16. It saves an
    eighth of the memory traffic of a compiled step on a GPU; sums over many blocks become coarser. auto: bf16 on a GPU
    with precision bf16, but for T5."""
    loss_chunk: int = Field(COMPILED_CHUNK, ge=128, le=2**20, exclude_if=lambda rows: rows == COMPILED_CHUNK)
    """Rows of logits that compiled code on a GPU has at a time, two bytes for each token of the vocabulary and twice.
    `gpt2train plan` halves it where memory is short."""
    # Left out of a run's files when off, so that files and fingerprints of older runs stay the same.
    fp8: Literal["off", "tensorwise", "rowwise"] = Field("off", exclude_if=lambda fp8: fp8 == "off")
    """Matrix products of the blocks in 8-bit floating point, with one scale per matrix or per row; needs precision
    bf16, sizes that are multiples of 16, and a GPU of compute capability 8.9 or newer. A CPU computes it slowly, for
    tests. The rounding is coarse: compare the loss with bf16 first."""


class CheckpointSettings(Settings):
    """Saving, retention and initialisation from checkpoints."""

    interval: PositiveNumber = 500
    """Steps between checkpoints; the last step is always saved."""
    keep: PositiveNumber = 3
    """Number of newest checkpoints to keep."""
    keep_best: NaturalNumber = 1
    """Number of checkpoints with the best validation to keep in addition; only validated steps count."""
    best_metric: str = Field("loss", exclude_if=lambda metric: metric == "loss")
    """Measure of the best validation: loss, the lowest; of a classification also accuracy or f1, the highest."""
    select: Literal["last", "best"] = Field("last", exclude_if=lambda select: select == "last")
    """Checkpoint of a finished run that is merged and scored: that of the last step, or the best one. With best, every
    validated step is saved."""
    async_save: bool = True
    """Write in the background; training pauses only while the state is copied."""
    init_from: Place | None = None
    """Initial state of a new run: a run folder or a checkpoint of any layout, a Hugging Face GPT-2 folder, or a
    checkpoint of Megatron. A run that has its own checkpoints resumes from those instead."""
    restore: Literal["weights", "optimizer", "full"] = "optimizer"
    """Part of `init_from` to load: the weights, the weights and the optimizer state, or also the position in steps and
    data. Sources with weights only always load the weights; `full` refuses them."""

    @model_validator(mode="after")
    def _best_is_kept(self) -> Self:
        if self.select == "best" and not self.keep_best:
            raise ValueError("checkpoints.select best needs keep_best above 0; set keep_best = 1, or select = 'last'")
        return self


class LoggingSettings(Settings):
    """Console lines, trackers and profiler."""

    interval: PositiveNumber = 10
    """Steps between console lines; metrics.jsonl and TensorBoard get every step."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    wandb: str | None = None
    """Weights & Biases project to log to; wandb must be installed."""
    mlflow: str | None = None
    """MLflow experiment to log to; mlflow must be installed."""
    profile: NaturalNumber = 0
    """Steps to record with torch's profiler, after three warm-up steps; traces go to `profile/`."""
    memory_snapshot: bool = False
    """Record the GPU allocator's history in the profiled steps."""
