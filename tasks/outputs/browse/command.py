"""The commands of local pages: `gpt2train data browse` and `gpt2train data label`."""

import contextlib
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.errors import UserError
from gpt2train.store.folder import Folder

if TYPE_CHECKING:
    from gpt2train.serve.local_page import LocalPageServer


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
    from gpt2train.serve.local_page import LocalPageServer
    from tasks.outputs.browse.server import browse_routes

    root = Folder.given(output)
    _serve(LocalPageServer(browse_routes(root), port), open_)


def label(
    folder: Path,
    /,
    *,
    votes: Path | None = None,
    model: Path | None = None,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 0,
    seed: int = 0,
    open_: Annotated[bool, Parameter(name="--open")] = True,
) -> None:
    """Open a local page that shows kept and rejected documents side by side; one key votes good or bad.

    From 200 votes on, the page trains a model for `clean.filters.quality`. The whole way of a document is one key away,
    in the data browser. Ctrl-C ends the command; every vote is on disk by then.

    Parameters
    ----------
    folder
        Output folder of a data flow, with its clean/ and documents/.
    votes
        File of the votes; FOLDER/quality/votes.jsonl by default. Votes that are there count.
    model
        File of the model; FOLDER/quality/model.safetensors by default.
    port
        Port on 127.0.0.1; 0 takes a free one.
    seed
        Seed of the order of the documents.
    open_
        Open the page in the default browser.
    """
    from gpt2train.quality.documents import sample_documents
    from gpt2train.quality.session import Session
    from gpt2train.quality.votes import VoteFile
    from gpt2train.serve.local_page import LocalPageServer
    from gpt2train.store.removal import RemovalCheck
    from tasks.outputs.browse.server import browse_routes, label_routes

    no_removal = RemovalCheck([folder / "clean"])
    kept, rejected = sample_documents(folder, seed)
    if not kept and not rejected:
        raise UserError(f"{folder}/clean has no documents; give the output folder of another data flow")
    votes = votes or folder / "quality" / "votes.jsonl"
    session = Session(kept, rejected, VoteFile(votes), model or folder / "quality" / "model.safetensors")
    below = {"browse": browse_routes(Folder(folder.absolute()))}
    server = LocalPageServer(label_routes(session, no_removal), port, below)
    print(f"{len(kept):,} kept and {len(rejected):,} rejected documents; votes: {votes}")
    _serve(server, open_)


def _serve(server: "LocalPageServer", open_: bool) -> None:
    print(f"page: {server.url}", flush=True)
    if open_:
        webbrowser.open(server.url)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
