"""A site whose pages have validators, and its refreshes as tests read them."""

import dataclasses
import hashlib
import io
from typing import Any

from warcio.archiveiterator import ArchiveIterator

from gpt2train.store.manifest import Folder, Manifest
from tasks.core.shards import read_rows
from tasks.download.warc import Page
from tests.tasks.corpus import Inline
from tests.tasks.download.fetch_helpers import run_again
from tests.tasks.web_server import Handler, Site

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
CONSENT: dict[str, Any] = {"consent": {"enabled": True}}


@dataclasses.dataclass
class Server:
    site: Site
    bodies: dict[str, str] = dataclasses.field(default_factory=dict)
    validators: dict[str, str] = dataclasses.field(default_factory=dict)  # path -> etag, date, both, none
    extra: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)  # path -> further header fields
    asked: list[tuple[str, int, bool]] = dataclasses.field(default_factory=list)  # path, status, was it conditional

    def put(self, path: str, text: str | None, kind: str = "etag", **extra: str) -> None:
        self.extra[path] = extra
        self.validators[path] = kind
        self.site.handlers[path] = self._answer
        self.bodies.pop(path, None)
        if text is not None:
            self.bodies[path] = f"<html><head></head><body><p>{text}</p></body></html>"

    def _answer(self, h: Handler) -> None:
        path, kind = h.path, self.validators[h.path]
        if path not in self.bodies:
            return self._note(h, 410, b"", {})
        body = self.bodies[path].encode()
        tag, fields = f'W/"{hashlib.sha256(body).hexdigest()[:8]}"', {}
        if kind in ("etag", "both"):
            fields["ETag"] = tag
        if kind in ("date", "both"):
            fields["Last-Modified"] = DATE
        known = (h.headers["If-None-Match"] or "", h.headers["If-Modified-Since"] or "")
        wanted = {"etag": (tag, ""), "both": (tag, DATE), "date": ("", DATE)}.get(kind)
        status = 304 if known == wanted and (kind != "date" or "changed" not in self.bodies[path]) else 200
        self._note(h, status, b"" if status == 304 else body, {**fields, **self.extra[path]})
        return None

    def _note(self, h: Handler, status: int, body: bytes, fields: dict[str, str]) -> None:
        conditional = "If-None-Match" in h.headers or "If-Modified-Since" in h.headers
        self.asked.append((h.path, status, conditional))
        h.answer(body, "text/html; charset=utf-8", status, **{name.replace("-", "_"): v for name, v in fields.items()})


def urls(*paths: str, host: str = "a") -> list[str]:
    return [f"http://{host}.test{path}" for path in paths]


def refresh(root: Folder, server: Server, **options: Any) -> Manifest:
    server.asked.clear()
    return run_again(root, server.site.address, Inline(2), refresh=True, **options)


def listed(root: Folder, made: Manifest) -> dict[str, dict[str, Any]]:
    names = [one.name for one in made.outcome.audit if one.name.startswith("refresh/") and "parquet" in one.name]
    rows = [row for name in names for row in read_rows(root / "pages", name)]
    return {row["url"].partition(".test")[2]: row for row in rows}


def plain(found: list[Page]) -> list[Page]:
    return [dataclasses.replace(page, fetched_at="", ip="") for page in found]


def records_of(root: Folder, name: str) -> list[tuple[Any, Any, bytes]]:
    """Heads, HTTP heads and bodies of the records of an archive, with their digests checked."""
    records = ArchiveIterator(io.BytesIO((root / "pages").read_bytes(name)), check_digests="raise")
    return [(record.rec_headers, record.http_headers, record.content_stream().read()) for record in records]


def revisits(root: Folder, made: Manifest) -> list[tuple[Any, Any]]:
    names = [one.name for one in made.outcome.audit if one.name.startswith("refresh/") and "warc" in one.name]
    records = [one for name in names for one in records_of(root, name) if one[0]["WARC-Type"] != "warcinfo"]
    assert all(head["WARC-Type"] == "revisit" and not body for head, _, body in records)
    return [(head, http) for head, http, _ in records]


def fill(server: Server) -> list[list[str]]:
    for kind in ("etag", "date", "both", "none"):
        server.put(f"/{kind}", f"The page {kind} stands.", kind)
        server.put(f"/{kind}/changes", f"The page {kind} is old.", kind)
    server.put("/goes", "A page that goes.")
    server.put("/comes", None)
    server.put("/never", None)
    server.put("/breaks", "A page whose server breaks.")
    server.put("/hidden", "A page that robots.txt forbids.")
    first = urls("/etag", "/etag/changes", "/goes", "/comes", "/breaks", "/date", "/date/changes")
    return [first, urls("/both", "/both/changes", "/never", "/none", "/none/changes", "/hidden")]


def change(server: Server) -> None:
    for kind in ("etag", "date", "both", "none"):
        server.put(f"/{kind}/changes", f"The page {kind} has changed.", kind)
    server.put("/goes", None)
    server.put("/comes", "A page that has come.")
    server.site.robots["a.test"] = (200, "User-agent: *\nDisallow: /hidden\n")
