"""Web page with prompt, settings, streamed text, and the probability of each token.

The page consists of three local files. It uses `/v1/completions`; its content security policy forbids any other
connection.
"""

from collections.abc import Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

# script-src without 'unsafe-inline': a script in generated text would not run even if it were inserted as HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the next visit gets the files of a new release
}
FILES = {
    "/": ("index.html", "text/html"),
    "/index.html": ("index.html", "text/html"),
    "/page/style.css": ("style.css", "text/css"),
    "/page/script.js": ("script.js", "text/javascript"),
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page to an app."""
    for path, (name, kind) in FILES.items():
        app.get(path, include_in_schema=False)(_answer(files(__name__).joinpath(name).read_bytes(), kind))


def _answer(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
