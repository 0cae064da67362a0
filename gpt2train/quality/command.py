"""The commands `gpt2train data label` and `gpt2train data train-quality`."""

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.errors import UserError
from gpt2train.io.files import write_atomic

PRECISION = 0.9


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

    From 200 votes on, the page trains a model for `clean.filters.quality`. Ctrl-C ends the command; every vote is
    on disk by then.

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
    from gpt2train.quality.label_server import LabelServer
    from gpt2train.quality.session import Session
    from gpt2train.quality.votes import VoteFile

    kept, rejected = sample_documents(folder, seed)
    if not kept and not rejected:
        raise UserError(f"{folder}/clean has no documents; give the output folder of another data flow")
    votes = votes or folder / "quality" / "votes.jsonl"
    session = Session(kept, rejected, VoteFile(votes), model or folder / "quality" / "model.safetensors")
    server = LabelServer(session, port)
    print(f"{len(kept):,} kept and {len(rejected):,} rejected documents; votes: {votes}")
    print(f"page: {server.url}", flush=True)
    if open_:
        webbrowser.open(server.url)
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def train_quality(
    votes: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    output: Path,
    precision: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = PRECISION,
) -> None:
    """Train a quality model from votes, as the page of `gpt2train data label` does.

    Parameters
    ----------
    votes
        Files of votes. The last vote on a document counts.
    output
        File of the model, for `clean.filters.quality.model`.
    precision
        Share of good documents among those that the model keeps, by cross-validation.
    """
    from gpt2train.quality.model_file import to_bytes
    from gpt2train.quality.training import train, with_precision
    from gpt2train.quality.votes import read_votes

    model, evaluation = train(read_votes(votes))
    model = with_precision(model, evaluation, precision)
    write_atomic(output, to_bytes(model))
    print(f"{evaluation.good} good and {evaluation.bad} bad votes")
    print(f"AUC {evaluation.auc:.3f} ± {evaluation.auc_error:.3f}, cross-validated")
    print(
        f"threshold {model.threshold:g}: precision {model.about['precision']:.3f}, recall {model.about['recall']:.3f}"
    )
    print(f"model: {output}")
