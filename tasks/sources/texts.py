"""The texts step: the user's JSON lines, Parquet, WET and text files -> documents.

`texts/part-00000-00000.parquet`, schema `shards.DOCUMENT`, in the order of the files and of their records, with a file
of rejected rows. A record without a URL gets `<file>#<id>` or `<file>#<row>`; a text file gets its name. A damaged file
has the records before its first fault, and a rejected row `broken_file`; of Parquet each damaged row group has.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gpt2train.data.documents import END_OF_TEXT, TEXT_NAMES
from gpt2train.errors import DamagedFileError
from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.document import document_id
from tasks.core.forgotten import read_forgotten
from tasks.core.input_files import InputFile, check_unchanged, commits_of, kind_of, where_to_read
from tasks.core.runner import Runner
from tasks.core.shards import DOCUMENT
from tasks.core.step import Step
from tasks.sources.settings import TextsSettings
from tasks.sources.text_records import SEPARATE, Item, read_items
from tasks.sources.user_files import ShardWriter, commit_some, fault_of, grouped, identity_of

LICENSE = "license_"  # start of the facts that count the licences of documents
MAX_LICENSES, MAX_NAME = 100, 60  # kinds that a batch counts by their names, and characters of a name

log = logging.getLogger("gpt2train")


def texts(root: Folder, files: Sequence[InputFile], key: str, settings: TextsSettings, runner: Runner) -> Manifest:
    """Read text records into `texts/`; a batch is a large file or as many small files as fill a shard.

    Raises:
        UserError: A file does not have the format of its suffix, or no record is usable; the message has the counts of
            the reasons.
    """
    step = Step(
        root,
        "texts",
        version=9,
        parameters=settings.model_dump(mode="json") | {"key": key},
        inputs={"files": identity_of(files), **read_forgotten(root).inputs},
        packages=("orjson",),
        commits=commits_of(files),
    )
    if done := runner.finished(step):
        return done
    batches = grouped(files, settings.shard_rows, settings.shard_bytes)
    where = where_to_read(files, root)
    outcomes = runner.batches(step, "part", batches, texts_part, key, settings, where=where)
    if count := Outcome.total(outcomes).facts.get("unseparated"):
        log.warning(
            f"texts: {END_OF_TEXT} stays text in {count_of(count, 'text file')}; "
            f"--texts.separator '{END_OF_TEXT}' makes what stands between documents of their own"
        )
    plain = all(kind_of(file.location) in TEXT_NAMES for file in files)
    if settings.separator and plain and Outcome.total(outcomes).seen == len(files):
        log.warning(f"texts: the separator {settings.separator!r} divides no text file; each is one document")
    return commit_some(step, outcomes, "the files given with --documents hold no text that can be used", "no records")


def texts_part(folder: Folder, name: str, files: Sequence[InputFile], key: str, settings: TextsSettings) -> Outcome:
    """Read the files of one batch; runs in a worker."""
    shards = ShardWriter(folder, name, DOCUMENT, "characters", lambda row: len(row["text"]))
    unseparated, licenses = 0, Counter[str]()
    for file, item in _items(files, key, settings):
        if shards.rows >= settings.shard_rows or shards.size >= settings.shard_bytes:
            shards.end_shard()
        row = document(file, item)
        if item.reason is None:
            shards.keep(row)
            if name := item.fields.get("license", "unknown" if settings.license_key else ""):
                licenses[name[:MAX_NAME] if name in licenses or len(licenses) < MAX_LICENSES else "other"] += 1
        else:
            where = ", ".join(filter(None, (file.name, item.location)))
            shards.reject(row, item.reason, f"{where}: {item.detail}")
        if kind_of(file.location) in TEXT_NAMES and (END_OF_TEXT in item.text or item.detail.endswith(SEPARATE)):
            unseparated += 1
    outcome = shards.close()
    facts = {"unseparated": unseparated} if unseparated else {}
    facts |= {f"{LICENSE}{name}": licenses[name] for name in sorted(licenses)}
    return outcome.model_copy(update={"facts": outcome.facts | facts})


def _items(files: Sequence[InputFile], key: str, settings: TextsSettings) -> Iterator[tuple[InputFile, Item]]:
    """Yield the records of files; a damaged file has those before its first fault, and one that says so."""
    for file in files:
        if fault := fault_of(file):
            yield file, Item("", reason="unreadable", detail=fault)
            continue
        item = Item("")
        try:
            for item in read_items(file, key, settings.max_bytes, settings.separator, settings.paths):
                yield file, item
        except DamagedFileError as error:
            place = f"after {item.location}" if item.location else ""
            yield file, Item(place, "", {"url": file.name}, "broken_file", error.fault)
        check_unchanged(file)


def document(file: InputFile, item: Item) -> dict[str, Any]:
    """Return a record's row of schema `shards.DOCUMENT`.

    `id` is always the hash of the content, since dedup and shuffle depend on it.
    """
    fragment = item.fields.get("id") or item.location.rpartition(" ")[2].replace(",", "")
    url = item.fields.get("url") or (f"{file.name}#{fragment}" if fragment else file.name)
    row = {"url": url, "source": file.name, "title": item.fields.get("title"), "date": item.fields.get("date")}
    return row | ({} if item.reason else {"id": document_id(url, item.text), "text": item.text})
