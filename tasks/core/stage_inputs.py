"""Staging of token data from an object store to the local disk, where training maps them into memory.

The files of a finished step are copied to `inputs/<hash of the identities>/` under the local output, each verified by
the hash in its manifest, and the manifest last. Complete files are not copied again; other data get a folder of their
own. The engine then reads plain local files.
"""

import concurrent.futures
import hashlib
import logging
import shutil
from collections.abc import Sequence

from gpt2train.errors import RunError
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import MANIFEST, Manifest, digest, read_manifest

log = logging.getLogger("gpt2train")

INPUTS = "inputs"
MAX_CONCURRENT = 8  # files in flight: a single stream from a store is slower than the network
CHUNK = 4 * 2**20  # bytes


def on_local_disk(data: Folder, manifests: Sequence[Manifest], root: Folder) -> Folder:
    """Return the folder of the steps itself if it is local, else a verified copy of these steps under the local `root`.

    Raises:
        RunError: A file does not match its manifest.
    """
    if data.is_local:
        return data
    copy = root / INPUTS / digest([manifest.identity for manifest in manifests])[:8]
    for manifest in manifests:
        fetch_step(data / manifest.folder, manifest, copy / manifest.folder)
    return copy


def fetch_step(source: Folder, manifest: Manifest, target: Folder) -> None:
    """Copy the outputs and audit files of a finished step, then its manifest."""
    # Training does not need the rejected rows.
    records = [*manifest.outcome.outputs, *manifest.outcome.audit]
    if read_manifest(target) == manifest and all(target.size(record.name) == record.bytes for record in records):
        return
    log.info(f"fetching {source.url}: {sum(record.bytes for record in records):,} bytes")
    with concurrent.futures.ThreadPoolExecutor(MAX_CONCURRENT) as executor:
        for done in [executor.submit(_fetch, source, record, target) for record in records]:
            done.result()
    target.write_bytes(MANIFEST, source.read_bytes(MANIFEST))


def _fetch(source: Folder, record: FileRecord, target: Folder) -> None:
    if target.size(record.name) == record.bytes and target.record(record.name).sha256 == record.sha256:
        return  # copied by a run that was killed
    with target.writing(record.name) as draft:
        with source.open(record.name) as file, draft.open("wb") as copy:
            shutil.copyfileobj(file, copy, CHUNK)
        with draft.open("rb") as copy:
            found = hashlib.file_digest(copy, "sha256").hexdigest()
        if found != record.sha256:
            raise RunError(f"{source.url}/{record.name} does not match its manifest; run dataprep with --verify there")
