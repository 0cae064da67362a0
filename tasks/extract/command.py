"""The command `gpt2train data explain`: which parts of a page are its text, and which rule dropped the others."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpt2train.data.documents import DAMAGE
from gpt2train.data.packed_file import unpack
from gpt2train.errors import UserError

if TYPE_CHECKING:
    from tasks.download.warc import Page

LINE = 100  # characters of a part in the terminal


def explain(page: str, /, *, output: Path | None = None) -> None:
    """Show the parts of a page that the extraction keeps, and the rule that dropped each of the others.

    The engine is `structure`, with its default settings.

    Parameters
    ----------
    page
        HTML file, or the address of a page, which is fetched as the download does it: robots.txt holds.
    output
        File or folder of a local HTML page with all parts in full.
    """
    from tasks.extract.account import RULES, account_document, characters_by_rule, page_account

    found = page_account(_fetched(page) if "://" in page else _read(Path(page)))
    if found is None:
        raise UserError(f"{page} has no markup; give an HTML file or the address of a page")
    encoding, text, parts = found
    for part in parts:
        line = " ".join(part.text.split())
        print(f"{part.rule or 'kept':10} {line if len(line) <= LINE else line[: LINE - 1] + '…'}")
    if text and not parts:
        print(f"the markup has no text; JSON-LD states {len(text):,} characters")
    sums = characters_by_rule(parts)
    print(f"\n{page}: {encoding}, {len(text):,} characters of text")
    for rule, size in sums.most_common():
        print(f"{size:9,} {rule or 'kept':10} {RULES.get(rule, '')}".rstrip())
    if output is not None:
        path = output if output.suffix in (".html", ".htm") else output / "explain.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(account_document(page, parts), encoding="utf-8")
        print(f"page: {path}")


def _read(path: Path) -> "Page":
    from tasks.core.input_files import suffix_of
    from tasks.download.mime import HTML_TYPES, type_of
    from tasks.sources.index import whole_page

    fault = ""
    try:
        with path.open("rb") as file:
            body = unpack(file, suffix_of(str(path))).read()
        if (kind := type_of(HTML_TYPES[0], body)) not in HTML_TYPES:
            fault = f"its bytes are those of {kind}"
    except DAMAGE as error:
        fault = getattr(error, "strerror", None) or str(error)
    if fault:
        raise UserError(f"{path} cannot be read: {fault}; give an HTML file or the address of a page")
    return whole_page(str(path), "explain", body)


def _fetched(url: str) -> "Page":
    import asyncio
    import dataclasses

    from tasks.download.fetch import Fetcher
    from tasks.download.settings import DownloadSettings
    from tasks.sources.index import whole_page

    async def fetch() -> "Page":
        async with Fetcher(DownloadSettings(), {}) as fetcher:
            page = await fetcher.fetch(url, "explain")
        if page.reason:
            raise UserError(f"{url} cannot be fetched: {page.reason} {page.detail}".rstrip() + "; save it as a file")
        return dataclasses.replace(whole_page(page.final_url, "explain", page.body or b""), charset=page.charset)

    return asyncio.run(fetch())
