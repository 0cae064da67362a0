"""`gpt2train serve`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpt2train.checkpoint.format import Device
from gpt2train.parallel.opened import Parts, opened
from gpt2train.serve.settings import ServeSettings

DEFAULTS, DEFAULT_PARTS = ServeSettings(), Parts()


def serve(
    *,
    model: Path,
    settings: Annotated[ServeSettings, Parameter(name="*")] = DEFAULTS,
    parts: Annotated[Parts, Parameter(name="*")] = DEFAULT_PARTS,
    device: Device = "auto",
) -> None:
    """Answer requests over HTTP: Megatron-LM's /api, OpenAI's /v1/completions, and a page for the browser.

    Parameters
    ----------
    model
        Model folder.
    device
        auto takes a GPU where there is one.
    """
    with opened(model, parts, device) as answering:
        from gpt2train.data.tokenizer import load_tokenizer
        from gpt2train.generate.decoder import decoder_of
        from gpt2train.serve.serve import serve as serve_decoder

        decoder = decoder_of(answering, settings.rows)
        serve_decoder(decoder, load_tokenizer(model), settings, model.resolve().name)
