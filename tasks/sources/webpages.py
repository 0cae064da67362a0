"""The webpages step: the user's HTML files, one page each -> an index, without copying them.

`webpages/part-00000-00000.parquet` (schema `index.INDEX`), with a file of rejected rows. A page's URL is the file name.
"""

from collections.abc import Sequence

from gpt2train.errors import DamagedFileError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.forgotten import read_forgotten
from tasks.core.input_files import InputFile, check_unchanged, commits_of, open_input, where_to_read
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.download.mime import HTML_TYPES, type_of
from tasks.sources.index import INDEX, index_row, whole_page, write_locations
from tasks.sources.settings import WebpagesSettings
from tasks.sources.user_files import ShardWriter, commit_some, fault_of, grouped, identity_of

ENDINGS = (".html", ".htm", ".xhtml")


def webpages(root: Folder, files: Sequence[InputFile], settings: WebpagesSettings, runner: Runner) -> Manifest:
    """Index HTML files into `webpages/`; one batch per shard.

    Raises:
        UserError: No file is usable; the message has the counts of the reasons.
    """
    step = Step(
        root,
        "webpages",
        version=2,
        parameters=settings,
        inputs={"files": identity_of(files), **read_forgotten(root).inputs},
        commits=commits_of(files),
    )
    batches = grouped(files, settings.shard_rows, settings.shard_bytes)
    write_locations(step.folder, batches)
    if done := runner.finished(step):
        return done
    where = where_to_read(files, root)
    outcomes = runner.batches(step, "part", batches, webpages_part, settings, where=where)
    return commit_some(step, outcomes, "the pages given with --documents cannot be used", "no pages")


def webpages_part(folder: Folder, name: str, files: Sequence[InputFile], settings: WebpagesSettings) -> Outcome:
    """Index the files of one batch; runs in a worker."""
    shards = ShardWriter(folder, name, INDEX, "bytes", lambda row: int(row["bytes"]))
    for file in files:
        row = {"url": file.name, "source": file.name}
        if fault := fault_of(file):
            shards.reject(row, "unreadable", f"{file.name}: {fault}")
            continue
        try:
            with open_input(file.location) as stream:
                body = stream.read(settings.max_bytes + 1)
        except DamagedFileError as error:
            shards.reject(row, "broken_file", f"{file.name}: {error.fault}")
            continue
        check_unchanged(file)
        if len(body) > settings.max_bytes:
            shards.reject(row, "too_large", f"{file.name}: more than {settings.max_bytes:,} bytes")
        elif not body.strip():
            shards.reject(row, "empty", f"{file.name}: nothing but spaces")
        elif (kind := type_of(HTML_TYPES[0], body)) not in HTML_TYPES:
            shards.reject(row, "content_type", f"{file.name}: the bytes are those of {kind}")
        else:
            shards.keep(index_row(file, whole_page(file.name, file.name, body)))
    return shards.close()
