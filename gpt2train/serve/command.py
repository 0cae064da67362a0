"""The command `gpt2train serve`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpt2train.convert.settings import Device
from gpt2train.inference.open_model import open_model
from gpt2train.inference.settings import ServingLayout
from gpt2train.serve.settings import ServeSettings

DEFAULTS, DEFAULT_LAYOUT = ServeSettings(), ServingLayout()


def serve(
    *,
    model: Path,
    settings: Annotated[ServeSettings, Parameter(name="*")] = DEFAULTS,
    layout: Annotated[ServingLayout, Parameter(name="*")] = DEFAULT_LAYOUT,
    device: Device = "auto",
) -> None:
    """Serve a model over HTTP: Megatron-LM's /api, OpenAI's /v1/completions, and a web page.

    Parameters
    ----------
    model
        Model folder.
    device
        auto uses a GPU if there is one.
    """
    with open_model(model, layout, device) as opened:
        from gpt2train.data.tokenizer import load_tokenizer
        from gpt2train.inference.decoder import decoder_of
        from gpt2train.serve.server import serve as serve_decoder
        from gpt2train.serve.service import name_of

        decoder = decoder_of(opened, settings.max_batch_size)
        serve_decoder(decoder, load_tokenizer(model), settings, name_of(model))
