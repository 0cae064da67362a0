"""Earlier deduplications whose kept documents a new crawl is compared with."""

from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.dedup.groups import Group
from tasks.dedup.settings import SKETCH, DedupSettings
from tasks.steps import MANIFEST, Manifest, read_manifest
from tasks.storage import Folder


def open_earlier(settings: DedupSettings, version: int) -> list[tuple[Folder, Manifest]]:
    """The earlier deduplications that the settings name.

    Raises:
        UserError: one is not there, is not whole, or was made with other sketch settings.
    """
    return [_open(url, settings, version) for url in settings.earlier]


def groups_of(folder: Folder, manifest: Manifest, earlier: int, start: int) -> list[Group]:
    """The groups of an earlier deduplication, their shards numbered from `start` on."""
    names = [record.name for record in manifest.outputs]
    everything = Group(
        documents=folder,
        shards=tuple(names),
        start=start,
        earlier=earlier,
        sketches=folder,
        dropped=tuple(record.name for record in manifest.outcome.audit if record.name.startswith("dropped/")),
    )
    groups = []
    for record in manifest.outcome.audit:
        if record.name.startswith("sketch/") and record.rows:
            with folder.open(record.name) as file:
                metadata = pq.read_metadata(file)
            columns = [metadata.row_group(place).column(0).statistics for place in range(metadata.num_row_groups)]
            low, high = min(c.min for c in columns) >> 32, max(c.max for c in columns) >> 32
            shards = everything.shards[low : high + 1]
            groups.append(
                replace(everything, sketch=record.name, rows=record.rows, shards=shards, start=start + low, origin=low)
            )
    return groups


def _open(url: str, settings: DedupSettings, version: int) -> tuple[Folder, Manifest]:
    folder = Folder(url)
    manifest = read_manifest(folder)
    if manifest is None or manifest.step != "dedup":
        raise UserError(
            f"dedup.earlier: {url} holds no finished deduplication ({MANIFEST}); give the dedup/ folder of an output"
        )
    if manifest.version != version:
        raise UserError(
            f"dedup.earlier: {url} was made by another version of the deduplication; run that output again first"
        )
    ours: dict[str, Any] = settings.model_dump(mode="json")
    for name in SKETCH:
        if manifest.parameters[name] != ours[name]:
            raise UserError(
                f"dedup.earlier: {url} was made with dedup.{name} = {manifest.parameters[name]}, not {ours[name]}; "
                "sketches can be compared only where these agree"
            )
    for record in (*manifest.outputs, *manifest.outcome.audit):
        if folder.size(record.name) != record.bytes:
            raise UserError(f"dedup.earlier: {url}/{record.name} is gone or damaged; run that output again first")
    return folder, manifest
