"""Markdown of the cards."""

from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def plain(text: str, limit: int = 200) -> str:
    """Return a text from outside, such as the name of a host, in which Markdown interprets nothing, cut at a length."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    return "".join(" " if not c.isprintable() else f"\\{c}" if c in "\\|`<>[]*_#&" else c for c in cut)
