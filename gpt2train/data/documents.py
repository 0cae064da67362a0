"""Documents of loose files: JSON lines, single texts, tar archives of both, in any common compression, and Parquet.

Archives are read as streams and nothing is unpacked to the disk. A compressed member is opened too, so that
`openwebtext.tar.xz`, whose members are compressed archives of `.txt` files, is read as it is published.
"""

import codecs
import contextlib
import io
import json
import logging
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from tarfile import (  # type: ignore[attr-defined]
    EmptyHeaderError,
    EOFHeaderError,
    HeaderError,
    ReadError,
    TruncatedHeaderError,
)
from typing import IO, Any, Literal, NamedTuple, Self

import orjson

from gpt2train.data.packed_file import PACKED, FaultLast, compression, unpack
from gpt2train.errors import LFS_POINTER, LFS_REMEDY, UTF16_REMEDY, DamagedFileError, UserError
from gpt2train.store.run_folder import FLOW_RUN

log = logging.getLogger("gpt2train")

BLOCK = 1 << 20  # bytes read at a time
MAX_DOCUMENT = 1 << 28  # bytes of a line or a text; a longer one is rejected, so that no file can fill the memory
MAX_DEPTH = 3  # archives within archives, and compressions of one stream: a gzip file can contain itself
HIDDEN = (".", "__", "_temporary")  # starts of files and folders that are no data: of Spark's unfinished attempts too
DATASET_FILES = (
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
)  # of the library datasets
CARD = "README.md"  # of a dataset or repository
CARD_HEAD = 2**16  # bytes of a card in which its keys are looked for
# Keys in the front matter of a dataset's card: those of no other page, and those of other pages too.
CARD_KEYS = {
    *(b"annotations_creators", b"configs", b"dataset_info", b"language_creators", b"multilinguality", b"pretty_name"),
    *(b"size_categories", b"source_datasets", b"task_categories", b"task_ids"),
}
SHARED_KEYS = {b"language", b"license"}
_FRONT_MATTER = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?)(?:^---[ \t]*\r?$|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(rb"^([a-z_]+):(?=\s|\Z)", re.MULTILINE)
HEAD = 512  # bytes from which the kind of a stream is seen: the first header of a tar archive
PARQUET_MAGIC = b"PAR1"
BLANK = b" \t\r\n" + codecs.BOM_UTF8  # bytes before the first line of a text
ARCHIVES = (*PACKED, ".tgz", ".tar")
UNKNOWN = {
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
}
UNKNOWN_NAMES = (".zip", ".7z", ".rar", ".lz4", ".lzma", ".z", ".br", ".sz", ".lzo")
# Endings by which every command knows a format, in lower case; the order is that of messages.
JSON_NAMES = (".jsonl", ".json", ".ndjson", ".jsonlines", ".jl", ".ldjson", ".geojsonl")
PARQUET_NAMES = (".parquet", ".pq", ".parq")
ARROW_NAMES = (".arrow",)  # of the library datasets
COLUMN_NAMES = (*PARQUET_NAMES, *ARROW_NAMES)
TEXT_NAMES = (".txt", ".text", ".md", ".markdown")
_ROWS = re.compile(rf"(?:{'|'.join((*JSON_NAMES, *COLUMN_NAMES))})(?:{'|'.join(PACKED)})?\Z", re.IGNORECASE)
_RESULT = re.compile(r"(?:^|/)cache-[^/]*\.arrow\Z")
WIKI = re.compile(r"wiki_[0-9]{2,}")  # files of wikiextractor, which have no ending
WIKI_HEAD = b"<doc id="
_WIKI_DOCUMENT = re.compile(rb'<doc id="([^"]*)".*? url="([^"]*)" title="(.*)">\r?')
END_OF_TEXT = "<|endoftext|>"  # as tools write it between the documents of a .txt file
REMEDY = "give Parquet, .arrow, or JSON lines or .txt, alone or in .tar, packed by gzip, bzip2, xz or zstd"
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, ValueError, DamagedFileError)
_SEAM = re.compile(rb"\}(?:\s|\xef\xbb\xbf)*\{")
_SPACE = re.compile(r"[\s\ufeff]*")
_DECODER = json.JSONDecoder()
BYTE_ORDERS = {  # UTF-32 first, since one of its marks begins with one of UTF-16
    **{codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be"},
    **{codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"},
}
UTF32_REMEDY = UTF16_REMEDY.replace("16", "32")
# Encodings without a mark by the NULs among the first four bytes, those of ASCII letters.
_BY_NULS = {(1, 3): "UTF-16LE", (0, 2): "UTF-16BE", (1, 2, 3): "UTF-32LE", (0, 1, 2): "UTF-32BE"}
PYTHON_ROW = re.compile(rb"\s*\{\s*'")  # as Python prints a dict
PYTHON_REMEDY = (
    "it is a dict as Python prints it, not JSON; convert the file: python -c 'import ast, json, sys; "
    "[print(json.dumps(ast.literal_eval(line))) for line in sys.stdin]' < IN > OUT"
)


class Row(NamedTuple):
    """One document as it is stored."""

    place: str  # file, and member of an archive after `!`
    number: int  # line in JSON lines, row in Parquet or text between separators, from 1; 0 for a file that is one text
    kind: Literal["json", "text", "cell", "too_large", "null", "not_text", "broken_file"]
    """The last four have no text. After a broken file's row its file, or row group of Parquet, has no more rows."""
    content: bytes  # text or JSON object; the fault of a broken file


class Rejected(NamedTuple):
    """Document without tokens, and why."""

    place: str
    line: int
    reason: str
    detail: str


def documents(path: Path, key: str, separator: str = "") -> Iterator[str | Rejected]:
    """Read the documents of a file as `read_rows` does: the text of each, or the reason why it has none.

    Args:
        path: file.
        key: key of the text in JSON lines, column of the texts in Parquet.
        separator: string between the documents of a .txt file; without one the file is a document.
    """
    return (read_text(row, key) for row in read_rows(path, key, separator))


def read_text(row: Row, key: str) -> str | Rejected:
    """Text of a document, or the reason why it has none."""
    if row.kind == "too_large":
        return rejected(row, "too_large", f"more than {MAX_DOCUMENT:,} bytes")
    if row.kind == "null":
        return rejected(row, "not_text", f"{key} is null")
    if row.kind == "not_text":
        return rejected(row, "not_text", "a member of an archive that is no text")
    if row.kind == "broken_file":
        return rejected(row, "broken_file", f"cannot read on: {row.content.decode()}; copy the file again")
    if row.kind == "json":
        try:
            value = parse(row.content)
        except (ValueError, RecursionError) as error:
            return rejected(row, "not_json", PYTHON_REMEDY if PYTHON_ROW.match(row.content) else str(error))
        if not isinstance(value, dict):
            return rejected(row, "not_json", "not a JSON object")
        try:
            text = find_value(value, key)
        except KeyError:
            return rejected(row, "no_key", f"keys: {', '.join(sorted(value))}")
        if not isinstance(text, str):
            return rejected(row, "not_text", f"{key} is not a string")
    else:
        try:
            text = row.content.decode() if row.kind == "cell" else _decode(row.content)
        except UnicodeDecodeError as error:
            return rejected(row, "not_utf8", str(error))
    if not text:
        return rejected(row, "empty", "a document without text has no tokens")
    try:
        text.encode()
    except UnicodeEncodeError:
        return rejected(row, "not_utf8", "a lone surrogate, which UTF-8 cannot encode")
    return text


def _decode(content: bytes) -> str:
    """Decode a text file, of UTF-8, or UTF-16 or UTF-32 with a byte order mark.

    Raises:
        UnicodeDecodeError: it is none, by its first bytes also where these could be UTF-8.
    """
    encoding = encoding_of(content)
    if encoding == "utf-8" and (at := content[:4].find(0)) >= 0:
        raise UnicodeDecodeError("utf-8", content[:4], at, at + 1, no_mark(content) or "a text has no NUL")
    return content.decode(encoding).removeprefix("\ufeff")


def encoding_of(head: bytes) -> str:
    """Return the encoding of a text by its byte order mark, UTF-8 without one."""
    return next((encoding for mark, encoding in BYTE_ORDERS.items() if head.startswith(mark)), "utf-8")


def no_mark(head: bytes) -> str:
    """Return the remedy for a text that is UTF-16 or UTF-32 without a byte order mark; empty for another."""
    found = _BY_NULS.get(tuple(at for at, byte in enumerate(head[:4]) if not byte))
    return f"as in {found} without a byte order mark; convert it: iconv -f {found} -t UTF-8 IN > OUT" if found else ""


def rejected(row: Row, reason: str, detail: str) -> Rejected:
    """Reject a document."""
    return Rejected(row.place, row.number, reason, " ".join(detail.split())[:300])


def expand(inputs: list[Path]) -> list[Path]:
    """List the files of the inputs: a folder has all of its files, by name, but for the metadata of scraped texts.

    The card of a dataset in a folder and results of `map` are left out too.

    Raises:
        UserError: an input does not exist, or a folder has no file, or a name without one.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            below = sorted(map(Path, files_below(str(path))))
            files = [file for file in below if not is_hidden(file.relative_to(path))]
            if odd := next((file for file in files if not file.is_file()), None):
                raise UserError(f"{odd} is no file, or a link to one that is not there; remove it")
            names = {str(file) for file in files}
            names -= left_out(names, _read_head)
            if not names:
                raise UserError(f"{path} has no files; {REMEDY}")
            found += [file for file in files if str(file) in names and scraped_text(str(file)) not in names]
        elif path.is_file():
            found.append(path)
        elif path.exists():
            raise UserError(f"{path} is a pipe or device; write what it gives to a file first")
        else:
            raise UserError(f"there is no file {path}; check the path")
    return found


def files_below(folder: str) -> Iterator[str]:
    """Yield the paths of all files below a local folder; a folder reached again through links is skipped.

    So is the output of a flow, by default `out` in the working folder: else the next run would read its own files.
    """
    seen: set[tuple[int, int]] = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        status = Path(path).stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if FLOW_RUN in names:
            log.warning("%s is not read: it is the output of a flow; give files of it, as shuffled/*.parquet", path)
            folders.clear()
            continue
        folders.sort()
        yield from (f"{path.rstrip('/')}/{name}" for name in names)


def is_hidden(path: str | Path) -> bool:
    """Return True if a path below a given folder is no data by its name, or by that of a folder on the way."""
    inner = PurePosixPath(path)
    return inner.name in DATASET_FILES or any(part.startswith(HIDDEN) and part != ".." for part in inner.parts)


def left_out(names: Collection[str], read_head: Callable[[str], bytes]) -> set[str]:
    """Find the files of a folder that are none of its documents: cards of datasets, results of `map` beside its input.

    A `README.md` is a card by the keys of its front matter; by those that other pages have too if rows are below it.

    Raises:
        OSError: a store does not answer `read_head`.
    """
    found = [name for name in names if PurePosixPath(name).name == CARD]
    folders = {outer for name in names if found and _ROWS.search(name) for outer in PurePosixPath(name).parents}
    cards = set()
    for name in found:
        # One that cannot be read is a document, and so a fault; a store that fails may not decide what it is.
        with contextlib.suppress(PermissionError, FileNotFoundError):
            front = _FRONT_MATTER.match(read_head(name))
            keys = set(_KEY.findall(front[1])) if front else set()
            if keys & CARD_KEYS or (keys & SHARED_KEYS and PurePosixPath(name).parent in folders):
                cards.add(name)
    results = {name for name in names if _RESULT.search(name)}
    for left, kind in ((cards, "the card of a dataset"), (results, "a result of map that datasets keeps")):
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            log.info("%s%s: not read, as %s; name the file itself to read it", min(left), more, kind)
    return cards | results


def _read_head(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(CARD_HEAD)


def scraped_text(location: str) -> str | None:
    """Path or URL of the text that a crawler's `meta/NAME.json` describes, `data/NAME.txt`; None for other files."""
    folder, _, name = location.rpartition("/")
    if folder.rpartition("/")[2] != "meta" or not name.endswith(".json"):
        return None
    return f"{folder.removesuffix('meta')}data/{name.removesuffix('.json')}.txt"


def read_lines(stream: IO[bytes], longest: int, end: bytes = b"\n") -> Iterator[tuple[int, bytes | None]]:
    """Yield lines with their numbers, from 1, without the line end; None for a line of more than `longest` bytes.

    Such a line is never completely in memory. Lines before a fault of the stream come before its error.
    """
    edge_bytes = len(end) - 1  # after the last line of a block, they may begin an `end`
    number, held, size, edge = 1, list[bytes](), 0, b""  # the current line
    while block := stream.read1(BLOCK):  # type: ignore[attr-defined]
        *whole, last = (edge + block).split(end)
        for line in whole:
            size += len(line)
            yield number, None if size > longest else b"".join([*held, line]) if held else line
            number, held, size = number + 1, [], 0
        cut = max(0, len(last) - edge_bytes)
        edge, size = last[cut:], size + cut
        if size > longest:
            held = []
        elif cut:
            held.append(last[:cut])
    if size + len(edge):
        yield number, None if size + len(edge) > longest else b"".join([*held, edge])


def read_wiki(stream: IO[bytes], longest: int) -> Iterator[tuple[int, dict[str, bytes], bytes | None]]:
    """Yield the documents between the lines `<doc …>` and `</doc>` of wikiextractor: line, fields and text of each.

    The text is None if it has more than `longest` bytes. References for `&`, `<` and `>` are resolved.

    Raises:
        DamagedFileError: there is text outside of a document, or the last one has no end.
    """
    number, fields, held, size = 0, dict[str, bytes](), list[bytes](), 0
    for line_number, line in read_lines(stream, longest):
        head = _WIKI_DOCUMENT.fullmatch(line or b"") if not number else None
        if head:
            number, held, size = line_number, [], 0
            fields = dict(zip(("id", "url", "title"), head.groups(), strict=True))
        elif number and line is not None and line.rstrip() == b"</doc>":
            text = b"\n".join(held).strip(b"\r\n")
            for reference, letter in ((b"&lt;", b"<"), (b"&gt;", b">"), (b"&amp;", b"&")):
                text = text.replace(reference, letter)
            yield number, fields, text if size <= longest else None
            number = 0
        elif number:
            size += longest + 1 if line is None else len(line) + 1
            if size > longest:
                held.clear()
            elif line is not None:
                held.append(line)
        elif line is None or line.strip():
            raise DamagedFileError(f"line {line_number:,} is in no document", f"line {line_number:,} is in no <doc …>")
    if number:
        raise DamagedFileError(
            f"the document of line {number:,} has no end", f"the <doc …> of line {number:,} has no end"
        )


def read_rows(path: Path, key: str, separator: str = "") -> Iterator[Row]:
    """Read the documents of a file in their order; of a damaged file those before its first fault, and then the fault.

    Args:
        path: file.
        key: column of the texts in Parquet.
        separator: string between the documents of a .txt file; without one the file is a document.

    Raises:
        UserError: the file cannot be read, or is of an unknown kind or compression.
    """
    if path.suffix.lower() in UNKNOWN_NAMES:
        raise UserError(f"{path} has an unknown compression ({path.suffix}); {REMEDY}")
    row = Row(str(path), 0, "null", b"")
    try:
        for row in _file_rows(path, key, separator.encode()):
            yield row
    except DAMAGE as error:
        if isinstance(error, UserError) and not isinstance(error, DamagedFileError):
            raise
        if getattr(error, "errno", None):  # the disk failed, not the format
            raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}; copy the file again") from error
        yield _broken(row, error)


def _broken(last: Row, error: Exception) -> Row:
    """Row of the fault after the last row of a file or a member."""
    fault = error.fault if isinstance(error, DamagedFileError) else str(error) or type(error).__name__
    return Row(last.place, last.number + 1, "broken_file", fault.encode(errors="replace"))


def _file_rows(path: Path, key: str, separator: bytes) -> Iterator[Row]:
    with path.open("rb", buffering=BLOCK) as file:
        if (head := file.read(len(PARQUET_MAGIC))) == PARQUET_MAGIC or (head and path.suffix.lower() in ARROW_NAMES):
            yield from _cells(path, key)
            return
        file.seek(0)
        yield from _rows(file, str(path), key, separator, depth=0)


def _rows(file: IO[bytes], place: str, key: str, separator: bytes, depth: int) -> Iterator[Row]:
    """Documents of a stream, unpacked as its first bytes require."""
    head, stream = _peek(file)
    name = place.lower()
    for _ in range(MAX_DEPTH):
        if not (suffix := compression(head)):
            break
        head, stream = _peek(unpack(stream, suffix))
        name = name.removesuffix(PurePosixPath(name).suffix) if name.endswith(ARCHIVES) else name
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if fault := _refusal(head, place, name, separator):
        if not depth:
            raise UserError(fault)
        yield Row(place, 0, "not_text", b"")
    elif head[257:262] == b"ustar":
        yield from _members(stream, place, key, separator, depth)
    elif name.endswith(TEXT_NAMES) and not separator:
        yield _text(stream, place, "" if depth else key)
    elif name.endswith(TEXT_NAMES) or head.startswith(WIKI_HEAD):
        yield from _texts(stream, place, separator if name.endswith(TEXT_NAMES) else b"")
    elif not head or first == b"{" or (name.endswith(JSON_NAMES) and first != b"["):
        yield from _lines(stream, place)
    elif depth:
        yield Row(place, 0, "not_text", b"")
    elif first == b"[":
        raise UserError(f"{place} is a JSON array; write one object per line")
    else:
        raise UserError(f"{place} is of an unknown kind; {REMEDY}")


def _refusal(head: bytes, place: str, name: str, separator: bytes) -> str:
    """Return the reason why a stream that begins so is not read; empty if it may be.

    Raises:
        DamagedFileError: it has no bytes, not even those by which a packed file begins.
    """
    if not head and name.endswith((*ARCHIVES, *COLUMN_NAMES)):
        raise DamagedFileError(f"{place} has 0 bytes", "it has 0 bytes")
    if unknown := next((kind for magic, kind in UNKNOWN.items() if head.startswith(magic)), None):
        return f"{place} has an unknown compression ({unknown}); {REMEDY}"
    encoding = encoding_of(head)
    if encoding != "utf-8" and name.endswith((*JSON_NAMES, *TEXT_NAMES) if separator else JSON_NAMES):
        return f"{place}: {UTF16_REMEDY if encoding.startswith('utf-16') else UTF32_REMEDY}"
    return f"{place} {LFS_REMEDY}" if head.startswith(LFS_POINTER) else ""


def _texts(stream: IO[bytes], place: str, separator: bytes) -> Iterator[Row]:
    """Texts between separators, or of wikiextractor."""
    wiki = ((number, text) for number, _, text in read_wiki(stream, MAX_DOCUMENT))
    for number, text in read_lines(stream, MAX_DOCUMENT, separator) if separator else wiki:
        if text is None or text.strip():
            yield Row(place, number, "too_large" if text is None else "text", (text or b"").strip(b"\r\n"))


def _text(stream: IO[bytes], place: str, key: str) -> Row:
    """Text of a whole stream, which is checked if a key is given."""
    content = stream.read(MAX_DOCUMENT + 1)
    if key:
        check_text(place, content[:BLOCK].lstrip(BLANK).partition(b"\n")[0], key)
    return Row(place, 0, "text", content) if len(content) <= MAX_DOCUMENT else Row(place, 0, "too_large", b"")


def check_text(place: str, line: bytes, key: str) -> None:
    """Check the first line of a text file that is not blank.

    Raises:
        UserError: it is a row of JSON lines with the key.
    """
    text = None
    if line.lstrip(BLANK).startswith(b"{"):
        with contextlib.suppress(ValueError, RecursionError, KeyError):
            text = find_value(parse(line.lstrip(BLANK)), key)
    if isinstance(text, str):
        raise UserError(f"{place} has JSON lines with the key {key!r}; rename it to .jsonl")


def _cells(path: Path, key: str) -> Iterator[Row]:
    """Rows of a Parquet or Arrow file."""
    from gpt2train.data.parquet_column import read_arrow_cells, read_cells  # imports pyarrow (0.1 s)

    place = str(path)
    read = read_arrow_cells if path.suffix.lower() in ARROW_NAMES else read_cells
    for cell in read(place, lambda: path.open("rb"), key, (), MAX_DOCUMENT):
        if cell.fault and cell.fits:
            yield Row(place, cell.number, "broken_file", cell.fault.encode(errors="replace"))
        elif cell.fault or (cell.text is not None and cell.text.size > MAX_DOCUMENT):
            yield Row(place, cell.number, "too_large", b"")
        elif cell.text is None:
            yield Row(place, cell.number, "null", b"")
        else:
            yield Row(place, cell.number, "cell", cell.text.to_pybytes())


def _lines(stream: IO[bytes], place: str) -> Iterator[Row]:
    """Lines that are not blank; one that is too long is skipped to its end."""
    for number, line in read_lines(stream, MAX_DOCUMENT):
        if line is None:
            yield Row(place, number, "too_large", b"")
        else:
            yield from (Row(place, number, "json", part) for part in split_objects(line))


class _Header(tarfile.TarInfo):
    """Header of a member; a damaged or missing one is an error, where `tarfile` ends the archive without a word."""

    @classmethod
    def fromtarfile(cls, tarfile: Any) -> Self:
        """Read the next header.

        Raises:
            ReadError: the header is damaged, or the archive ends before its end mark.
        """
        archive: _Archive = tarfile
        try:
            header = super().fromtarfile(archive)
        except EOFHeaderError:  # the archive may be followed by another one, as `cat` joins them
            archive.ended = True
            raise
        except HeaderError as error:
            if archive.ended and isinstance(error, EmptyHeaderError | TruncatedHeaderError):
                raise
            fault = "the end mark is missing" if isinstance(error, EmptyHeaderError) else str(error)
            raise ReadError(f"{fault} at byte {archive.offset:,} of the archive") from error
        archive.ended = False
        return header


class _Archive(tarfile.TarFile):
    """Stream of one or several joined tar archives."""

    tarinfo = _Header
    ignore_zeros = True
    ended = False  # the last block was an end mark


def _members(stream: IO[bytes], place: str, key: str, separator: bytes, depth: int) -> Iterator[Row]:
    """Documents of a tar archive, in its order; other members are named as rejected."""
    with _Archive.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # else each header stays in memory
            if member.isdir():
                continue
            where, name = f"{place}!{member.name}", member.name.lower()
            packed = name.endswith(ARCHIVES) and depth < MAX_DEPTH
            known = (packed or name.endswith((*TEXT_NAMES, *JSON_NAMES))) and not is_hidden(name)
            content = archive.extractfile(member) if known and member.isfile() else None
            row = Row(where, 0, "not_text", b"")
            if content is None:
                yield row
                continue
            try:
                for row in _rows(content, where, key, separator, depth + 1):
                    yield row
            except DAMAGE as error:
                if not packed or getattr(error, "errno", None):  # of the archive, or of the disk
                    raise
                yield _broken(row, error)


def _peek(file: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    """First bytes of a stream, and the whole stream."""
    # A file itself stays seekable, which costs no bytes before a fault of zstd.
    stream = file if type(file) is io.BufferedReader else io.BufferedReader(FaultLast(file), BLOCK)
    return stream.peek()[:HEAD], stream


def parse(line: bytes) -> Any:
    """Return a JSON value, also one with NaN or lone surrogates as Python writes them.

    Raises:
        ValueError, RecursionError: the line is not JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line.decode("utf-8-sig", "surrogatepass"))  # of bytes, it guesses UTF-16 and UTF-32


def split_objects(line: bytes) -> list[bytes]:
    """Split a line where files without a last newline were concatenated; what follows the last whole object is one.

    The byte order marks with which they began are left out; a blank line has no object.
    """
    line = line.removeprefix(codecs.BOM_UTF8)
    if not line.strip():
        return []
    if not _SEAM.search(line):
        return [line]
    try:
        parse(line)
    except (ValueError, RecursionError):
        return _split(line)
    return [line]


def _split(line: bytes) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    try:
        text = line.decode("utf-8-sig").strip()
        while at < len(text) and text[at] == "{":
            _, end = _DECODER.raw_decode(text, at)
            parts.append(text[at:end].encode())
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    except UnicodeDecodeError:
        return [line]
    except (ValueError, RecursionError):  # of the object at `at`
        pass
    return [*parts, text[at:].encode()] if at < len(text) else parts


def find_value(record: Any, key: str) -> Any:
    """Return the value of a key, or of a path of keys through nested objects (`metadata.id`) or the JSON text of them.

    Raises:
        KeyError: there is none.
    """
    if isinstance(record, str) and record.startswith("{"):  # as RedPajama writes its metadata
        with contextlib.suppress(ValueError, RecursionError):
            record = parse(record.encode(errors="surrogatepass"))
    if not isinstance(record, Mapping):
        raise KeyError(key)
    if key in record:
        return record[key]
    first, dot, rest = key.partition(".")
    return find_value(record.get(first) if dot else None, rest)
