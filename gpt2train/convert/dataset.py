"""Documents of a data flow as a dataset folder for a hub: Parquet files of each split, and a dataset card.

`datasets.load_dataset(FOLDER)` loads it, and so do pandas and every reader of Parquet. The documents are those that the
tokens were made of, in the same order.
"""

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpt2train.convert.markdown import table
from gpt2train.convert.settings import CARD
from gpt2train.convert.step_manifests import data_steps
from gpt2train.errors import UserError
from gpt2train.io.files import atomic_folder, check_folder

STEP, MANIFEST = "shuffled", "_manifest.json"
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
        (draft / CARD).write_text(dataset_card(counts, data_steps(source, "tokenize"), license), encoding="utf-8")
    return counts


def dataset_card(
    counts: Counts, steps: list[dict[str, Any]], license: str | None, sections: tuple[tuple[str, str], ...] = ()
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
    made = [(step["step"], f"{step['outcome']['seen']:,}", f"{step['outcome']['kept']:,}") for step in steps]
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


USE = """```python
from datasets import load_dataset

documents = load_dataset("DATASET", split="train")
print(documents[0]["text"])
```

`DATASET` is this folder, or its name on a hub. With gpt2train: `python -m flows.dataprep --documents DATASET/data`."""


def _parts(source: Path) -> list[Path]:
    """The Parquet files of the shuffled documents, in order."""
    folder = source / STEP
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        names = [str(record["name"]) for record in manifest["outcome"]["outputs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} holds no finished step shuffle; give the output folder of python -m flows.dataprep"
        ) from error
    parts = [folder / name for name in names if name.endswith(".parquet")]
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
