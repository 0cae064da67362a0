"""Settings of the evaluation."""

from pydantic import Field, PositiveInt

from gpt2train.inference.settings import SamplingSettings
from gpt2train.settings import Settings


class EvaluateSettings(Settings):
    """Settings of the perplexities and samples; LAMBADA needs none, it is scored as a whole."""

    max_documents: PositiveInt = 40
    """Maximum held-out documents for the perplexity: those with the smallest ids, a random choice as ids are hashes."""
    max_characters: int = Field(4000, ge=100)
    """Maximum characters of a held-out document; a longer one is cut at the last white space before the limit."""
    stride: PositiveInt | None = None
    """Tokens between two perplexity windows; default: half the context of the model."""
    wikitext_stride: PositiveInt = 32
    """Tokens between two windows on WikiText, at most the context of the model."""
    prompts: tuple[str, ...] = ("This module provides", "The following example shows", "In Python,", "")
    """Prompts of the samples; an empty prompt starts a new document."""
    sampling: SamplingSettings = SamplingSettings(temperature=0.8, top_k=40)
    """Sampling of the sample generations."""
