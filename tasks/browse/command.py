"""The command `gpt2train data browse`."""

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from tasks.core.storage import Folder


def browse(
    output: str,
    /,
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 0,
    open_: Annotated[bool, Parameter(name="--open")] = True,
) -> None:
    """Open a local page that shows any document by id, URL or text, and its way through the steps.

    Nothing is written to the output. Ctrl-C ends the command.

    Parameters
    ----------
    output
        Output folder of a data flow, or its fsspec URL.
    port
        Port on 127.0.0.1; 0 takes a free one.
    open_
        Open the page in the default browser.
    """
    from tasks.browse.server import BrowseServer

    server = BrowseServer(Folder(output if "://" in output else Path(output).absolute()), port)
    print(f"page: {server.url}", flush=True)
    if open_:
        webbrowser.open(server.url)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
