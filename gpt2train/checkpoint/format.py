"""How models are stored and where they are used: the settings alone, without torch."""

from typing import Literal

from gpt2train.settings import Settings

Dtype = Literal["float32", "bfloat16", "float16"]
Format = Literal["huggingface", "megatron", "gpt2train"]
Names = Literal["new", "old"]  # Megatron-LM's, since 2021 and before
Version = Literal[0, 1, 2, 3]  # of Megatron-LM's checkpoints
Device = Literal["auto", "cpu", "cuda"]


class MergeSettings(Settings):
    """How the model folder is written."""

    dtype: Dtype = "float32"
    """What the weights are stored as; float32 is what training holds, bfloat16 is half the size."""
