"""Answers of the page of `gpt2train data browse`."""

from functools import lru_cache
from typing import Any

from gpt2train.errors import UserError
from gpt2train.serve.local_page import Routes
from gpt2train.store.folder import Folder
from gpt2train.store.output import Output, check_no_removal
from gpt2train.store.removal import removed_message
from tasks.core.forgotten import read_forgotten
from tasks.outputs.browse.difference import difference
from tasks.outputs.browse.page_account import account_of
from tasks.outputs.browse.samples import Runs
from tasks.outputs.browse.search import counts, search
from tasks.outputs.browse.way import text_of, way_of

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
