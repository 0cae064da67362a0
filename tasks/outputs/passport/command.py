"""The commands `gpt2train passport` and `gpt2train publish`."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpt2train.errors import UserError
from gpt2train.store.counts import count_of
from gpt2train.store.files import format_bytes
from gpt2train.store.folder import Folder
from tasks.outputs.passport.about import read_about

KEY_VARIABLE = "OPENLINEAGE_API_KEY"


def passport(
    output: str,
    /,
    *,
    run: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    about: Path | None = None,
    sign: Path | None = None,
    check: Path | None = None,
    send: str | None = None,
) -> None:
    """Write the documents of a corpus and of its runs: cards, Croissant, lineage, summary of training content, SPDX.

    Every number comes from the manifests. The flows write the same documents when they end.

    Parameters
    ----------
    output
        Output folder of a flow, or its fsspec URL.
    run
        Name of a run below runs/; may be given several times. By default all.
    about
        TOML file with what no manifest knows: provider, contact, license, ….
    sign
        Private key (PEM, elliptic curve) that signs the documents and the hashes of all manifests.
    check
        Public key: check the signature, and write nothing.
    send
        URL of an OpenLineage endpoint to send the events to, with the key in OPENLINEAGE_API_KEY if it is set.
    """
    from tasks.outputs.passport import write
    from tasks.outputs.passport.lineage import send as send_events

    root = Folder.given(output)
    if check is not None:
        write.check_passport(root, check)
        print(f"signature: {root.url}/{write.FOLDER} and the manifests are as signed")
        return
    names = run or write.runs_in(root)
    paths = write.write_passport(root, names, read_about(about))
    for path in paths:
        print(root.location(path))
    if sign is not None:
        print(f"signature: {write.sign_passport(root, sign)}")
    if send is not None:
        found = write.lineage_of(root, paths)
        send_events(found, send, os.environ.get(KEY_VARIABLE))
        print(f"sent: {len(found)} events")


def publish(
    source: str,
    /,
    *,
    to: str,
    dataset: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    public: Annotated[bool, Parameter(negative=())] = False,
    about: Path | None = None,
    sign: Path | None = None,
) -> None:
    """Publish a model with its tokenizer and cards, and its documents if asked, on the hub or in a folder.

    Parameters
    ----------
    source
        Output folder of a flow, run folder or model folder.
    to
        hf://USER/NAME, or a folder, which must not exist.
    dataset
        Publish the training documents too, in Parquet: in a dataset repository of the same name, or in a folder.
    dry_run
        Print what would be published, and send and write nothing.
    public
        Make a new repository public; private by default.
    about
        TOML file with what no manifest knows: provider, contact, license, ….
    sign
        Private key (PEM, elliptic curve) that signs the published files.
    """
    from gpt2train.store.hub import HUB
    from tasks.outputs.passport.publish import contents_of, publish_to_folder, publish_to_hub, repository

    if not to.startswith(HUB) and ("://" in to or to.lower().startswith("hf:") or not to.strip()):
        raise UserError(f"--to {to!r}: give hf://USER/NAME or a local folder")
    name = repository(to) if to.startswith(HUB) else None
    contents = contents_of(source, dataset=dataset, about=read_about(about))
    if dry_run:
        for path, file in contents.model.items():
            print(f"model: {path} ({format_bytes(file.stat().st_size)})")
        if contents.documents:
            size = sum(record.bytes for record in contents.documents.manifest.outputs)
            count = contents.documents.manifest.outcome.kept
            print(
                f"dataset: data/*.parquet, {count_of(count, 'document')} (about {format_bytes(size)}), README.md, "
                "croissant.json"
            )
        for path in contents.left_out:
            print(f"left out: {path}")
        print(f"nothing was sent or written; without --dry-run it goes to {to}")
    elif name:
        for address in publish_to_hub(contents, to, public=public, key=sign):
            print(f"published: {address}")
    else:
        for folder in publish_to_folder(contents, Path(to), sign):
            print(f"published: {folder}")
