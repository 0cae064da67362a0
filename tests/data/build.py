"""Build the files of this folder from the whole sets: `python tests/data/build.py WHOLE` (see README.md).

Every file keeps its path in the whole set. A name that ends in `.xz` here is that file, compressed.
"""

import gzip
import io
import json
import lzma
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMPRESSED = (
    "bpe/vocab.json",
    "bpe/merges.txt",
    "lambada/lambada_test.jsonl",
    "neardup/minhash_articles_100.jsonl",
    "wikitext/wiki.test.head20.raw",
)
COPIED = (
    "lang/ftfy_cases/in-the-wild.json",
    "lang/ftfy_cases/negative.json",
    "lang/udhr_lang_dev.jsonl.gz",
    "neardup/minhash_LICENSE",
    "neardup/minhash_articles_100.truth.tsv",
)
NOVELS = ("Anon_Clara_1864", "Gissing_Women_1893", "James_Roderick_1875", "Lytton_Kenelm_1873", "Morris_Wood_1894")
PAGES = {"apache2-doc": (30, 20_000), "postgresql-doc-15": (40, 30_000)}  # package: every n-th page of at most m bytes


def novel(row: dict[str, Any]) -> dict[str, Any] | None:
    chosen = row["id"].removeprefix("novel/") in NOVELS
    return {"id": row["id"], "text": row["text"][:100_000]} if chosen else None


def speech(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"id": row["id"], "text": row["text"][:3000]}


FILTERED: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "text/novels_dev.jsonl.gz": novel,
    "text/speeches_dev.jsonl.gz": speech,
}


def pages(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The chosen documentation pages, with neutral metadata."""
    seen = dict.fromkeys(PAGES, 0)
    for member in archive:
        package = member.name.split("/")[1] if member.isfile() else ""
        if package not in PAGES or member.size > PAGES[package][1]:
            continue
        seen[package] += 1
        if seen[package] % PAGES[package][0] == 1:
            made = tarfile.TarInfo(member.name)
            made.size = member.size
            yield made, archive.extractfile(member).read()  # type: ignore[union-attr]


def write(name: str, content: bytes) -> None:
    path = HERE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main(whole: Path) -> None:
    best = 9 | lzma.PRESET_EXTREME
    for name in COMPRESSED:
        write(f"{name}.xz", lzma.compress((whole / name).read_bytes(), preset=best))
    for name in COPIED:
        write(name, (whole / name).read_bytes())
    for name, chosen in FILTERED.items():
        rows = map(chosen, map(json.loads, gzip.decompress((whole / name).read_bytes()).splitlines()))
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows if row)
        write(name, gzip.compress(lines.encode(), 9, mtime=0))
    archive = "html_docs/html_docs_dev.tar.xz"
    packed = io.BytesIO()
    with tarfile.open(whole / archive) as source, tarfile.open(fileobj=packed, mode="w") as target:
        for member, body in pages(source):
            target.addfile(member, io.BytesIO(body))
    write(archive, lzma.compress(packed.getvalue(), preset=best))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
