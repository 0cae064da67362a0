"""Answers of the pages of `gpt2train data browse` and `gpt2train data label`."""

import difflib
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gpt2train.data.text_units import UNSPACED, spaced_word
from gpt2train.errors import UserError
from gpt2train.quality.session import Session
from gpt2train.serve.local_page import Routes
from gpt2train.store.folder import Folder
from gpt2train.store.output import Output, check_no_removal
from gpt2train.store.removal import removed_message
from tasks.core.forgotten import read_forgotten
from tasks.outputs.browse.page_account import account_of
from tasks.outputs.browse.samples import Runs
from tasks.outputs.browse.search import counts, search
from tasks.outputs.browse.way import text_of, way_of

MAX_WORDS = 6000  # of each text; with more, the comparison takes seconds
# White space, a sign, a letter of a script without spaces between words, or a word.
WORD = re.compile(rf"\s+|{UNSPACED.pattern}|{spaced_word()}|\S")
PAGE = f"{__package__}.page"
Values = dict[str, Any]


def browse_routes(root: Folder) -> Routes:
    """Return the contents of the page about the documents of one output.

    Raises:
        UserError: the output has no documents.
    """
    listed, output, runs = read_forgotten(root), Output(root), Runs(root)
    output.check_documents()
    steps = output.steps
    counted = lru_cache(maxsize=2)(lambda by: counts(steps, by))

    def overview(_: Values) -> Values:
        rows = [
            {
                "step": step.name,
                "seen": step.manifest.outcome.seen,
                "kept": step.manifest.outcome.kept,
                "reasons": step.manifest.outcome.reasons,
            }
            for step in steps
            if step.manifest.outcome.seen
        ]
        return {"root": root.url, "steps": rows}

    def document(query: Values) -> Values:
        return way_of(steps, runs, query.get("id", ""), query.get("url", ""))

    def text(query: Values) -> Values:
        return text_of(steps, query.get("step", ""), query.get("id", ""))

    def compared(query: Values) -> Values:
        one = text_of(steps, query.get("step", ""), query.get("id", ""))
        other = text_of(steps, query.get("other_step", ""), query.get("other", ""))
        return {"steps": [one["step"], other["step"]], **difference(one["text"], other["text"])}

    get = {
        "overview": overview,
        "search": lambda query: search(
            steps, query.get("query", ""), query.get("kind", "auto"), max(0, int(query.get("start", 0)))
        ),
        "document": document,
        "text": text,
        "difference": compared,
        "account": lambda query: account_of(output, query.get("id", ""), query.get("url", "")),
        "counts": lambda query: counted("language" if query.get("by") == "language" else "host"),
    }

    def check() -> None:
        check_no_removal(root)
        if read_forgotten(root) != listed:
            raise UserError(removed_message(root.url))

    return Routes(PAGE, get, check=check)


def difference(a: str, b: str) -> dict[str, object]:
    """Pieces of both texts in order, each with `same`, `removed` (in `a` alone) or `added` (in `b` alone)."""
    first, second = (WORD.findall(text) for text in (a, b))
    cut = max(len(first), len(second)) > MAX_WORDS
    first, second = first[:MAX_WORDS], second[:MAX_WORDS]
    pieces: list[tuple[str, str]] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, first, second).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(first[i:j])))
            continue
        for name, words in (("removed", first[i:j]), ("added", second[k:m])):
            if words:
                pieces.append((name, "".join(words)))
    same = sum(len(text) for kind, text in pieces if kind == "same")
    return {"pieces": pieces, "cut": cut, "same": same}


def label_routes(session: Session, check: Callable[[], None] = lambda: None) -> Routes:
    """Return the contents of the page of a session; `check` is called before each answer, see `Routes`."""

    def vote(body: dict[str, Any]) -> dict[str, Any]:
        return session.vote(str(body.get("id")), body.get("vote"))

    def train(body: dict[str, Any]) -> dict[str, Any]:
        return session.train(float(body.get("precision", "nan")))

    return Routes("gpt2train.quality.page", {"state": lambda _: session.state()}, {"vote": vote, "train": train}, check)
