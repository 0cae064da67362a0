"""The web page: prompt, settings, text as it comes, probabilities of each token.

Three files beside this module and nothing from elsewhere. The page talks to `/v1/completions` and is told by its policy
that it may talk to nobody else.
"""

from collections.abc import Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

# script-src without 'unsafe-inline': a script that a model wrote into its text would not run even if it got in.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # of another release at the next visit
}
FILES = {
    "/": ("index.html", "text/html"),
    "/index.html": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/script.js": ("script.js", "text/javascript"),
}


def add_page(app: FastAPI) -> None:
    """Let an app answer `/` with the page."""
    for path, (name, kind) in FILES.items():
        app.get(path, include_in_schema=False)(_answer(files(__name__).joinpath(name).read_bytes(), kind))


def _answer(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
