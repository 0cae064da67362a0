"""Previous deduplications, with whose kept documents a new crawl is compared."""

from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq

from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import MANIFEST, Manifest, read_manifest
from gpt2train.store.output import check_no_removal
from tasks.dedup.document_index import Group
from tasks.dedup.settings import SKETCH, DedupSettings


def open_previous(settings: DedupSettings, version: int) -> list[tuple[Folder, Manifest]]:
    """Open the previous deduplications of the settings.

    Raises:
        UserError: one does not exist, is incomplete, or has other sketch settings.
    """
    own: dict[str, Any] = settings.model_dump(mode="json")
    found = []
    for url in settings.previous:
        folder, place = Folder(url), f"dedup.previous: {url}"
        check_no_removal(Folder(folder.url.rpartition("/")[0]))
        manifest = read_manifest(folder)
        if manifest is None or manifest.step != "dedup":
            raise UserError(f"{place} holds no finished deduplication ({MANIFEST}); give the dedup/ of an output")
        if manifest.version != version:
            raise UserError(f"{place} was made by another version of the deduplication; run that output again first")
        for name in SKETCH:
            if manifest.parameters[name] != own[name]:
                raise UserError(
                    f"{place} was made with dedup.{name} = {manifest.parameters[name]}, not {own[name]}; "
                    "sketches can be compared only if these are equal"
                )
        for record in (*manifest.outputs, *manifest.outcome.audit):
            if folder.size(record.name) != record.bytes:
                raise UserError(f"{place}/{record.name} is missing or damaged; run that output again first")
        found.append((folder, manifest))
    return found


def like_previous(settings: DedupSettings) -> DedupSettings:
    """Return the settings with bands and rows that are not given taken from the first previous deduplication."""
    if not settings.previous or (settings.num_bands and settings.rows_per_band):
        return settings
    manifest = read_manifest(Folder(settings.previous[0]))
    if manifest is None or manifest.step != "dedup":  # refused when it is opened
        return settings
    names = [name for name in ("num_bands", "rows_per_band") if not getattr(settings, name)]
    return settings.model_copy(update={name: manifest.parameters[name] for name in names})


def previous_groups(folder: Folder, manifest: Manifest, previous: int, start: int) -> list[Group]:
    """Groups of a previous deduplication, with shards numbered from `start` on."""
    names = [record.name for record in manifest.outputs]
    everything = Group(
        documents=folder,
        shards=tuple(names),
        start=start,
        previous=previous,
        sketches=folder,
        dropped=tuple(record.name for record in manifest.outcome.audit if record.name.startswith("dropped/")),
    )
    groups = []
    for record in manifest.outcome.audit:
        if record.name.startswith("sketch/") and record.rows:
            with folder.open(record.name) as file:
                metadata = pq.read_metadata(file)
            columns = [metadata.row_group(number).column(0).statistics for number in range(metadata.num_row_groups)]
            low, high = min(c.min for c in columns) >> 32, max(c.max for c in columns) >> 32
            shards = everything.shards[low : high + 1]
            groups.append(
                replace(everything, sketch=record.name, rows=record.rows, shards=shards, start=start + low, origin=low)
            )
    return groups
