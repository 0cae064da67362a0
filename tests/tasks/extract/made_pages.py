"""Pages that tests of the main content make, and their texts."""

from tasks.extract.main_content import parse, structured_text

WORDS = "The quick brown fox jumps over the lazy dog and runs along the river until the night falls. "
PARAGRAPH = f"<p>{WORDS * 3}</p>"


def text_of(html: str, tables: bool = True) -> str:
    tree = parse(html)
    return "" if tree is None else structured_text(tree, tables)


def article(inside: str) -> str:
    return (
        "<html><body><header class='site-header'>The Daily Site <a href='/'>Home</a></header>"
        "<nav><a href='/a'>News</a></nav>"
        f"<div class='article-body'>{PARAGRAPH}{inside}{PARAGRAPH}</div>"
        "<div class='sidebar'><a href='/x'>Most read today</a></div>"
        "<footer>Copyright 2026 The Daily Site</footer></body></html>"
    )
