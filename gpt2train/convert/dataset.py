"""Documents of a data flow as a dataset folder for a hub (Parquet files of each split, a dataset card), or JSON lines.

`datasets.load_dataset(FOLDER)` loads it, and so do pandas and every reader of Parquet. The documents are those that the
tokens were made of, in the same order; JSON lines may be those of another step.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpt2train.convert.markdown import table
from gpt2train.convert.settings import CARD
from gpt2train.errors import UserError
from gpt2train.store.files import atomic_file, atomic_folder, check_folder
from gpt2train.store.folder import Folder
from gpt2train.store.inner_path import inner_file
from gpt2train.store.manifest import Manifest, read_manifest
from gpt2train.store.output import Output

STEP = "shuffled"
SPLITS = {"train": "train", "valid": "validation", "test": "test"}  # our names -> those of the datasets library
COLUMNS = {
    "text": "the document",
    "id": "hash of the document, or its own id",
    "url": "address of the page, or name of the file",
    "title": "title, if known",
    "date": "date, if known",
    "language": "ISO 639 code",
    "tokens": "number of tokens, or a lower bound of it, by which short documents were dropped",
}
FILE_BYTES = 1 << 30  # of texts in a file
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))


@dataclass
class Counts:
    """Contents of a dataset folder."""

    documents: Counter[str] = field(default_factory=Counter)  # by split
    characters: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)


def export_dataset(source: Path, target: Path, license: str | None = None, file_bytes: int = FILE_BYTES) -> Counts:
    """Write the shuffled documents of an output folder as a dataset folder, atomically.

    Args:
        source: output folder of a finished data flow, local.
        target: folder to write; it must not exist.
        license: identifier of the licence, for the card; None if unknown.
        file_bytes: characters of text after which a file is ended.

    Raises:
        UserError: the source has no finished documents, or the target exists.
    """
    if target.exists():
        raise UserError(f"{target} exists already; give --output another folder, or remove it")
    parts = _parts(source)
    check_folder(target.parent)
    with atomic_folder(target) as draft:
        counts = write_splits(parts, draft / "data", file_bytes)
        (draft / CARD).write_text(dataset_card(counts, data_steps(source), license), encoding="utf-8")
    return counts


def export_lines(source: Path, target: Path, step: str = STEP) -> int:
    """Write the documents of a step as JSON lines with the known ones of `COLUMNS`, atomically; return their number.

    Args:
        source: output folder of a data flow, local.
        target: file to write; it must not exist.
        step: folder of the step in the output folder.

    Raises:
        UserError: the step is not finished or has no documents, or the target exists.
    """
    if target.exists():
        raise UserError(f"{target} exists already; give --output another file, or remove it")
    import orjson
    import pyarrow.parquet as pq

    count, parts = 0, _parts(source, step)
    check_folder(target.parent)
    with atomic_file(target, target.with_name(f".tmp-{target.name}")) as draft, draft.open("wb") as file:
        for part in parts:
            with pq.ParquetFile(part) as table:
                names = table.schema_arrow.names
                if not {"text", "url"} <= set(names):
                    raise UserError(f"{source / step} has no documents; give --step another folder of {source}")
                for group in table.iter_batches(1024, columns=[name for name in COLUMNS if name in names]):
                    for row in group.to_pylist():
                        known = {name: row[name] for name in COLUMNS if row.get(name) is not None}
                        file.write(orjson.dumps(known, option=orjson.OPT_APPEND_NEWLINE))
                    count += len(group)
    return count


def dataset_card(
    counts: Counts, steps: Sequence[Manifest], license: str | None, sections: tuple[tuple[str, str], ...] = ()
) -> str:
    """Return the text of the card, in Markdown, with the front matter that hubs and the library `datasets` read.

    Args:
        counts: contents.
        steps: manifests of the steps that made the documents.
        license: identifier of the licence; None if unknown.
        sections: further sections about the documents: title, Markdown.
    """
    total = sum(counts.documents.values())
    languages = sorted(code for code in counts.languages if code.isalpha())
    front = [f"license: {license or 'unknown'}"]
    front += ["language:", *(f'- "{code}"' for code in languages)] if languages else []  # no: a truth value
    size = next((name for bound, name in SIZES if total < bound), "n>10M")
    front += ["task_categories:", "- text-generation", "size_categories:", f"- {size}", "tags:", "- gpt2train"]
    front += ["configs:", "- config_name: default", "  data_files:"]
    for split in (name for name in SPLITS.values() if counts.documents[name]):
        front += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
    rows = [
        (name, f"{counts.documents[name]:,}", f"{counts.characters[name]:,}")
        for name in SPLITS.values()
        if counts.documents[name]
    ]
    made = [(step.step, f"{step.outcome.seen:,}", f"{step.outcome.kept:,}") for step in steps if step.outcome.seen]
    licence = "The licence is not stated; ask the publisher before you use the texts."
    if license:
        licence = f"The collection is published under the licence `{license}`."
    parts = [
        "---\n" + "\n".join(front) + "\n---",
        "# Text corpus made with gpt2train",
        "Documents for training language models, cleaned and deduplicated, in a random order.",
        "## Content\n\n" + table(("split", "documents", "characters"), rows),
        table(("column", "content"), COLUMNS.items()),
        "## How it was made\n\nSteps, with the number of rows before and after each:\n\n"
        + table(("step", "in", "kept"), made),
        *(f"## {title}\n\n{text}" for title, text in sections),
        "## Use\n\n" + USE,
        "## Limits\n\nThe texts can contain errors, prejudice and personal data. Each remains under the terms of its "
        f"source. {licence}",
    ]
    return "\n\n".join(parts) + "\n"


def data_steps(root: Path, tokens: str | None = None) -> list[Manifest]:
    """Return the manifests of the steps that the documents of the tokens in an output folder passed, in order.

    With `tokens`, these must have this identity.
    """
    output = Output(Folder(root))
    for step in output.steps:
        if step.manifest.step == "tokenize" and tokens in (None, step.manifest.identity):
            made = [one.manifest for one in output.chain(step)[:-1]]
            return [one for one in made if one.step != "cloze"]  # draws an evaluation set from the documents
    return []


USE = """```python
from datasets import load_dataset

documents = load_dataset("DATASET", split="train")
print(documents[0]["text"])
```

`DATASET` is this folder, or its name on a hub. With gpt2train: `python -m flows.dataprep --documents DATASET/data`."""


def _parts(source: Path, step: str = STEP) -> list[Path]:
    """The Parquet files of a step's documents, in order."""
    folder = source / step
    if (made := read_manifest(Folder(folder))) is None:
        raise UserError(f"{folder} holds no finished step; give the output folder of python -m flows.dataprep")
    names = [record.name for record in made.outputs if record.name.endswith(".parquet")]
    parts = [inner_file(source, f"{step}/{name}", folder) for name in names]
    if missing := next((part for part in parts if not part.is_file()), None):
        raise UserError(f"{missing} is missing; run the data flow again to restore it")
    return parts


def write_splits(parts: Iterable[Path | IO[bytes]], folder: Path, file_bytes: int = FILE_BYTES) -> Counts:
    """Write `SPLIT-00000.parquet`, …: files of whole row groups, the documents in their order."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    folder.mkdir()
    counts, files, sizes = Counts(), Counter[str](), Counter[str]()
    writers: dict[str, Any] = {}
    with ExitStack() as stack:
        for part in parts:
            for group in stack.enter_context(pq.ParquetFile(part)).iter_batches(batch_size=1024):
                for ours, name in SPLITS.items():
                    mask = pc.equal(group.column(group.schema.get_field_index("split")), ours)
                    chosen = group.filter(mask).select(list(COLUMNS))
                    if not chosen.num_rows:
                        continue
                    if name not in writers or sizes[name] >= file_bytes:
                        file = folder / f"{name}-{files[name]:05d}.parquet"
                        writers[name] = stack.enter_context(pq.ParquetWriter(file, chosen.schema, compression="zstd"))
                        files[name] += 1
                        sizes[name] = 0
                    writers[name].write_batch(chosen)
                    characters = int(pc.sum(pc.utf8_length(chosen.column(0))).as_py())
                    sizes[name] += characters
                    counts.documents[name] += chosen.num_rows
                    counts.characters[name] += characters
                    counts.languages.update(code for code in chosen.column(5).to_pylist() if code)
    return counts
