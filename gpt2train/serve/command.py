"""`gpt2train serve`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpt2train.checkpoint.format import Device
from gpt2train.serve.settings import ServeSettings

DEFAULTS = ServeSettings()


def serve(
    *,
    model: Path,
    settings: Annotated[ServeSettings, Parameter(name="*")] = DEFAULTS,
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
    from gpt2train.checkpoint.huggingface import read_model
    from gpt2train.data.tokenizer import load_tokenizer
    from gpt2train.generate.decoder import LocalDecoder
    from gpt2train.serve.serve import serve as serve_decoder

    decoder = LocalDecoder(read_model(model, device), settings.rows)
    serve_decoder(decoder, load_tokenizer(model), settings, model.resolve().name)
