"""Web page with prompt, settings, streamed text, and the probability of each token; and documentation of the API.

The page consists of local files. It uses `/v1/completions`; its content security policy forbids any other
connection. The documentation is rendered from the OpenAPI description.
"""

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from jinja2 import Environment

from gpt2train.serve import local_page

HEADERS = {**local_page.HEADERS, "Cache-Control": "no-cache"}  # the next visit gets the files of a new release
FILES = {
    "/": ("page/index.html", "text/html"),
    "/index.html": ("page/index.html", "text/html"),
    "/page/base.css": ("base.css", "text/css"),
    "/page/style.css": ("page/style.css", "text/css"),
    "/page/script.js": ("page/script.js", "text/javascript"),
}
DOCS = files(__name__).joinpath("docs.html").read_text(encoding="utf-8")
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page to an app."""
    for path, (name, kind) in FILES.items():
        app.get(path, include_in_schema=False)(_answer(files(local_page.PACKAGE).joinpath(name).read_bytes(), kind))


def _answer(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer


def render_docs(openapi: dict[str, Any]) -> str:
    """Render the page; methods of a path with equal fields share one section."""
    routes: list[dict[str, Any]] = []
    for path, methods in openapi["paths"].items():
        for method, route in methods.items():
            fields, about = _fields(openapi, route), route.get("description", "")
            if routes and routes[-1]["path"] == path and routes[-1]["fields"] == fields:
                routes[-1]["methods"] += f", {method.upper()}"
            else:
                routes.append({"path": path, "methods": method.upper(), "about": about, "fields": fields})
    return Environment(autoescape=True).from_string(DOCS).render(info=openapi["info"], routes=routes)


def _fields(openapi: dict[str, Any], route: dict[str, Any]) -> list[dict[str, str]]:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" not in body:
        return []
    schema = openapi["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "about": field.get("description", ""),
            "bounds": _bounds(field),
            "default": "required" if name in required else _default(field.get("default")),
        }
        for name, field in schema["properties"].items()
    ]


def _default(value: Any) -> str:
    return "" if value is None else json.dumps(value)


def _bounds(field: dict[str, Any]) -> str:
    kinds = [field, *field.get("anyOf", [])]
    return ", ".join(f"{sign} {kind[key]:g}" for kind in kinds for key, sign in BOUNDS.items() if key in kind)
