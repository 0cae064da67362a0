"""Token data from an object store onto the disk that training maps into memory.

A finished step's files are copied one by one, each checked against the hash in its manifest, and the manifest last, to
`inputs/<hash of the identities>/` under the local output. What is there already, whole, is not copied again; other
data come to lie in a folder of their own. The engine then reads plain local files.
"""

import concurrent.futures
import hashlib
import logging
import shutil
from collections.abc import Sequence

from gpt2train.errors import RunError
from tasks.steps import MANIFEST, Manifest, digest, read_manifest
from tasks.storage import FileRecord, Folder

log = logging.getLogger("gpt2train")

INPUTS = "inputs"
AT_ONCE = 8  # files in flight: one stream from a store is slower than the network
CHUNK = 4 * 2**20


def on_local_disk(data: Folder, manifests: Sequence[Manifest], root: Folder) -> Folder:
    """The folder itself where it is local; else a verified copy of these steps under `root`.

    Raises:
        RunError: a file is not the one that its manifest names.
    """
    if data.is_local:
        return data
    copy = root / INPUTS / digest([manifest.identity for manifest in manifests])[:8]
    for manifest in manifests:
        fetch_step(data / manifest.folder, manifest, copy / manifest.folder)
    return copy


def fetch_step(source: Folder, manifest: Manifest, target: Folder) -> None:
    """Copy a finished step's outputs and audit files, and then its manifest."""
    # Rejected rows stay where they are: training has no use for them.
    records = [*manifest.outcome.outputs, *manifest.outcome.audit]
    if read_manifest(target) == manifest and all(target.size(record.name) == record.bytes for record in records):
        return
    log.info(f"fetching {source.url}: {sum(record.bytes for record in records):,} bytes")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as executor:
        for done in [executor.submit(_fetch, source, record, target) for record in records]:
            done.result()
    target.write_bytes(MANIFEST, source.read_bytes(MANIFEST))


def _fetch(source: Folder, record: FileRecord, target: Folder) -> None:
    if target.size(record.name) == record.bytes and target.record(record.name).sha256 == record.sha256:
        return  # of a copy that was killed
    with target.writing(record.name) as draft:
        with source.open(record.name) as file, draft.open("wb") as copy:
            shutil.copyfileobj(file, copy, CHUNK)
        with draft.open("rb") as copy:
            found = hashlib.file_digest(copy, "sha256").hexdigest()
        if found != record.sha256:
            raise RunError(
                f"{source.url}/{record.name} is not the file that its manifest names; run dataprep with --verify there"
            )
