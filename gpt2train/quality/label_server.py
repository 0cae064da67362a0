"""HTTP server of the labelling page, on a loopback address (`gpt2train.serve.local_page`)."""

from collections.abc import Callable
from typing import Any

from gpt2train.quality.session import Session
from gpt2train.serve.local_page import LocalPageServer, Routes

PAGE = f"{__package__}.page"


class LabelServer(LocalPageServer):
    """Server of one session; `url` is the address of the page.

    Args:
        session: the session.
        port: port; 0 takes a free one.
        browse: contents of the page `browse/`, which shows the whole way of a document; None for no such page.
        check: called before each answer; UserError means that the files behind the documents have changed.

    Raises:
        UserError: the port is in use.
    """

    def __init__(
        self,
        session: Session,
        port: int = 0,
        browse: Routes | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        def vote(body: dict[str, Any]) -> dict[str, Any]:
            return session.vote(str(body.get("id")), body.get("vote"))

        def train(body: dict[str, Any]) -> dict[str, Any]:
            return session.train(float(body.get("precision", "nan")))

        get = {"state": lambda _: {**session.state(), "can_browse": browse is not None}}
        below = {"browse": browse} if browse else {}
        super().__init__(Routes(PAGE, get, {"vote": vote, "train": train}, check), port, below)
