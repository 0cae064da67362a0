"""How a merged model is stored and where it is used: the settings alone, without torch."""

from typing import Literal

from gpt2train.settings import Settings

Dtype = Literal["float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]


class MergeSettings(Settings):
    """How the model folder is written."""

    dtype: Dtype = "float32"
    """What the weights are stored as; float32 is what training holds, bfloat16 is half the size."""
