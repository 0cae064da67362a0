"""Contents of the labelling page, which `gpt2train.serve.local_page` serves."""

from collections.abc import Callable
from typing import Any

from gpt2train.quality.session import Session
from gpt2train.serve.local_page import Routes

PAGE = f"{__package__}.page"


def label_routes(session: Session, check: Callable[[], None] = lambda: None) -> Routes:
    """Return the contents of the page of a session; `check` is called before each answer, see `Routes`."""

    def vote(body: dict[str, Any]) -> dict[str, Any]:
        return session.vote(str(body.get("id")), body.get("vote"))

    def train(body: dict[str, Any]) -> dict[str, Any]:
        return session.train(float(body.get("precision", "nan")))

    return Routes(PAGE, {"state": lambda _: session.state()}, {"vote": vote, "train": train}, check)
