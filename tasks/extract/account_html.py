"""Account of a page as HTML: of `gpt2train data explain`, and of the data browser."""

from collections.abc import Sequence
from html import escape

from tasks.extract.account import RULES, Part, characters_by_rule

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
p { margin: .3rem 0; padding-left: .6rem; border-left: 4px solid #2a7; white-space: pre-wrap; }
p.dropped { border-color: #c33; color: #777; } small { color: #c33; } .h { font-weight: bold; }
.pre { font-family: monospace; } td:first-child { text-align: right; padding-right: 1em; }
"""


def account_document(name: str, parts: Sequence[Part]) -> str:
    """HTML document with the account of a page."""
    head = f'<!doctype html><meta charset="utf-8"><title>{escape(name)}</title><style>{STYLE}</style>'
    return f"{head}\n<h1>{escape(name)}</h1>\n{account_fragment(parts)}\n"


def account_fragment(parts: Sequence[Part]) -> str:
    """Table of the characters by rule, and all parts in order, without a script or a style."""
    rows = "".join(
        f"<tr><td>{size:,}<td>{escape(rule or 'kept')}<td>{escape(RULES.get(rule, ''))}"
        for rule, size in characters_by_rule(parts).most_common()
    )
    lines = "\n".join(
        f'<p class="{part.kind}{" dropped" if part.rule else ""}" title="{RULES.get(part.rule, "kept")}">'
        f"{escape(part.text)}{f' <small>{part.rule} {escape(part.element)}</small>' if part.rule else ''}</p>"
        for part in parts
    )
    return f"<table>{rows}</table>\n{lines}"
