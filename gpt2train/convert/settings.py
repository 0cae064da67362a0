"""Settings of stored models, apart from the code so that `--help` does not load torch."""

from typing import Literal

from pydantic import Field

from gpt2train.settings import Settings

CARD = "README.md"  # model card of a model folder
Dtype = Literal["float32", "bfloat16", "float16"]
Format = Literal["huggingface", "megatron", "megatron-core", "gpt2train"]
GGUFType = Literal["f32", "f16", "bf16", "q8_0"]
Names = Literal["new", "old"]  # Megatron-LM's tensor names: since 2021, before
CoreFormat = Literal["torch_dist", "torch"]  # --ckpt-format of Megatron-Core: whole tensors, a file for each rank
Spec = Literal["transformer_engine", "local"]  # --transformer-impl of Megatron-Core
Version = Literal[0, 1, 2, 3]  # versions of Megatron-LM's checkpoints
Device = Literal["auto", "cpu", "cuda", "mps"]


class MergeSettings(Settings):
    """Format and licence of the merged model folder."""

    dtype: Dtype = "float32"
    """Data type of the stored weights; float32 as in training, bfloat16 for half the size."""
    license: str | None = Field(None, pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=64)
    """Licence of the weights for the model card, as model hubs write it (mit, apache-2.0, cc-by-4.0); `unknown` by
    default."""
