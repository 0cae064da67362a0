"""Lists of URLs, streamed: text, one a line, packed or not; or Parquet with a column `url`.

Blank lines and lines that begin with `#` are passed over. What is kept is the line without the white space around it;
whether it is a URL at all is the blacklist's question.
"""

from collections.abc import Iterator, Sequence

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from gpt2train.errors import UserError
from tasks.inputs import InputFile, find_inputs, kind_of, open_input, read_lines

SUFFIXES = (".txt", ".lst", ".parquet")
LONGEST = 8192  # bytes of a URL; longer ones are traps or no URLs
COLUMN = "url"
ROWS = 8192  # of a Parquet file, in memory at a time


def find_url_lists(patterns: Sequence[str]) -> list[InputFile]:
    """The lists that the patterns name, each looked into.

    Raises:
        UserError: there is no such file, it cannot be read, or it holds no URL.
    """
    lists = find_inputs(patterns, "--urls", SUFFIXES)
    for item in lists:
        if next(read_urls(item.place), None) is None:
            raise UserError(f"{item.place} holds no URL; it should hold one a line")
    return lists


def read_urls(place: str) -> Iterator[tuple[int, str | None]]:
    """Rows of a list with their numbers, from 1; None for one of more than `LONGEST` bytes.

    Raises:
        UserError: the file cannot be read, or is not of the kind that its name says; names the file.
    """
    return _read_parquet(place) if kind_of(place) == ".parquet" else _read_text(place)


def _read_text(place: str) -> Iterator[tuple[int, str | None]]:
    with open_input(place) as stream:
        for number, line in read_lines(stream, LONGEST):
            if line is None:
                yield number, None
                continue
            url = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace").strip()
            if url and not url.startswith("#"):
                yield number, url


def _read_parquet(place: str) -> Iterator[tuple[int, str | None]]:
    number = 0
    try:
        with fsspec.open(place, "rb") as file:
            table = pq.ParquetFile(file)
            names = table.schema_arrow.names
            if COLUMN not in names:
                raise UserError(
                    f"{place} has no column {COLUMN!r}, only {', '.join(names)}; rename the one with the URLs"
                )
            for batch in table.iter_batches(batch_size=ROWS, columns=[COLUMN]):
                column = batch[COLUMN]
                column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for value in column.cast(pa.large_binary()).to_pylist():
                    number += 1
                    url = (value or b"").decode("utf-8", errors="replace").strip()
                    yield number, url if len(value or b"") <= LONGEST else None
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{place} is no Parquet file that can be read ({error}); fetch it again or rename it"
        ) from error
