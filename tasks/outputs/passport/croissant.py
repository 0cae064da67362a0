"""Croissant description of a dataset folder: JSON-LD that dataset search and loaders read.

Format: Croissant 1.0 (MLCommons; Akhtar et al. 2024).
"""

from collections.abc import Sequence
from typing import Any

from gpt2train.store.counts import count_of
from gpt2train.store.folder import FileRecord
from tasks.outputs.passport.facts import Corpus

VERSION = "http://mlcommons.org/croissant/1.0"
PARQUET = "application/x-parquet"
TYPES = {"tokens": "sc:Integer", "language_share": "sc:Float"}  # of columns; others are texts
DESCRIPTIONS = {
    "text": "The document",
    "id": "Hash of the document, or its own id",
    "url": "Address of the page, or name of the file",
    "title": "Title, if known",
    "date": "Date, if known",
    "language": "ISO 639 code",
    "tokens": "Number of tokens, or a lower bound of it, by which short documents were dropped",
    "language_hint": "Language that the page states, ISO 639 code",
    "language_share": "Share of the text in the kept languages, 0 to 1",
    "source": "Name of the list, archive or file that it came from",
    "split": "Split: train, valid or test",
}
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
} | {
    name: f"cr:{name}"
    for name in (
        *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet"),
        *("format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet"),
        *("references", "regex", "repeated", "replace", "samplingRate", "separator", "source", "subField"),
        "transform",
    )
}


def croissant(
    corpus: Corpus, files: Sequence[FileRecord], columns: Sequence[str], license: str | None
) -> dict[str, Any]:
    """Return the description of the documents of a corpus in Parquet files, whose names are paths from the description.

    `license` is the identifier of the collection's licence, if known.
    """
    total = sum(corpus.documents.values())
    folder = files[0].name.rpartition("/")[0] if files else ""
    files_below = f"{folder}/*.parquet" if folder else "*.parquet"
    every = {"@type": "cr:FileSet", "@id": "files", "name": "files", "encodingFormat": PARQUET, "includes": files_below}
    found: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": VERSION,
        "name": "text corpus made with gpt2train",
        "description": f"{count_of(total, 'document')} for training language models, cleaned and deduplicated.",
        "version": f"1.0.0+{corpus.last.content}",
        "inLanguage": [name for name, _ in corpus.languages if name != "unknown"],
        "distribution": [*map(_file_object, files), every],
        "recordSet": [_records(columns)],
    }
    if license:
        found["license"] = license
    if corpus.crawl and corpus.crawl.first:
        found["rai:dataCollectionTimeframe"] = [corpus.crawl.first, corpus.crawl.last]
    if corpus.last.step in corpus.times:
        found["datePublished"] = corpus.times[corpus.last.step][1].date().isoformat()
    return found


def _file_object(file: FileRecord) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.name,
        "name": file.name,
        "contentUrl": file.name,
        "contentSize": f"{file.bytes} B",
        "encodingFormat": PARQUET,
        "sha256": file.sha256,
    }


def _records(columns: Sequence[str]) -> dict[str, Any]:
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"documents/{name}",
            "name": f"documents/{name}",
            "description": DESCRIPTIONS.get(name, name),
            "dataType": TYPES.get(name, "sc:Text"),
            "source": {"fileSet": {"@id": "files"}, "extract": {"column": name}},
        }
        for name in columns
    ]
    return {"@type": "cr:RecordSet", "@id": "documents", "name": "documents", "field": fields}
