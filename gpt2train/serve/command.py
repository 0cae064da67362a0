"""The command `gpt2train serve`."""

import signal
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpt2train.command_line import ModelFolder
from gpt2train.convert.settings import Device
from gpt2train.extras import SERVE, check_extra
from gpt2train.inference.open_model import check_model, open_model
from gpt2train.inference.settings import ServingLayout
from gpt2train.serve.settings import ServeSettings

DEFAULTS, DEFAULT_LAYOUT = ServeSettings(), ServingLayout()


def serve(
    *,
    model: ModelFolder,
    settings: Annotated[ServeSettings, Parameter(name="*")] = DEFAULTS,
    layout: Annotated[ServingLayout, Parameter(name="*")] = DEFAULT_LAYOUT,
    device: Device = "auto",
    trace: Annotated[list[Path] | None, Parameter(consume_multiple=(0, 1), negative=(), metavar="[OUT]")] = None,
) -> None:
    """Serve a model over HTTP: Megatron-LM's /api, OpenAI's /v1 with chat for a tuned model, and a web page.

    Parameters
    ----------
    model
        Model folder.
    device
        auto uses a GPU if there is one.
    trace
        Run folder, output folder of the data steps, or prefix of token files whose tokens GET /v1/trace and the page
        search for spans of a text; they need an index (gpt2train data index). Without a value the run that the model
        lies in. Clients then see texts of the corpus.
    """
    check_extra("gpt2train serve", SERVE)
    settings.read_key()  # mistakes of the command line first, before the model is read
    settings.bind().close()
    place = None
    if trace is not None:
        from gpt2train.runs.text_trace import find_source, traced_place

        place = traced_place(trace, model)
        find_source(place)
    shape = check_model(model, layout)
    from gpt2train.convert.hf_config import read_end_tokens
    from gpt2train.data.chat import open_chat
    from gpt2train.data.tokenizer import load_model_tokenizer
    from gpt2train.model.families import check_decoder_alone

    check_decoder_alone(shape, model)
    tokenizer, ends = load_model_tokenizer(model, shape.vocab), read_end_tokens(model, shape.vocab)
    chat = open_chat(model, tokenizer)
    with open_model(model, layout, device) as opened:
        from gpt2train.inference.decoder import decoder_of
        from gpt2train.serve.server import prepare
        from gpt2train.serve.service import name_of

        decoder = decoder_of(opened, settings.max_batch_size)
        server = prepare(decoder, tokenizer, settings, name_of(model), place, ends, chat)
        # After its shutdown uvicorn raises the signal again, and the previous handler would end the process by it.
        signal.signal(signal.SIGTERM, lambda *_: None)
        key = ", with a key" if server.service.key else ""
        print(f"serving {server.service.name} at {server.address}{key}", flush=True)
        server.run()
