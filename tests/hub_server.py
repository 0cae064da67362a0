"""A hub on loopback that speaks as much of the API as clients need: revisions, trees, redirects, 429, commits."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import constants

LARGE = 1000  # bytes from which a file is answered by another address, as files of LFS are


class Hub(ThreadingHTTPServer):
    """Repositories by `datasets/ORG/NAME` or `models/ORG/NAME`, each a list of revisions, which are files by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Calls)
        self.repositories: dict[str, list[tuple[str, dict[str, bytes]]]] = {}  # branches and files, the newest last
        self.calls: list[str] = []  # requests as `GET /path`
        self.busy, self.retry_after = 0, "0"  # how many requests will be answered with 429, and the header of these
        self.broken = 0  # of how many files only the first half will be sent
        self.sent = 0  # bytes of files
        self.token = ""  # without which a request is refused
        self.uploaded: dict[str, bytes] = {}  # large files by their hash
        self.private: dict[str, bool] = {}  # repositories that a client has created
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def put(self, repository: str, files: dict[str, bytes], branch: str = "main") -> str:
        self.repositories.setdefault(repository, []).append((branch, files))
        return commit(repository, len(self.repositories[repository]) - 1)

    def files(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        found = self.repositories.get(repository, [])
        for number in reversed(range(len(found))):
            branch, files = found[number]
            if revision in (branch, commit(repository, number)):
                return commit(repository, number), files
        return None


def ask_only(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands, and the client that is imported already, ask this hub and no other."""
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HUB_OFFLINE", "On")  # as a command sets it
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)


def commit(repository: str, number: int) -> str:
    return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()


def entry(path: str, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    found["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if len(content) >= LARGE:
        found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return found


class _Calls(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        self.server.calls.append(f"{self.command} {unquote(self.path)}")
        if self.server.busy:
            self.server.busy -= 1
            self.reply(429, b"", {"Retry-After": self.server.retry_after})
        elif self.server.token and parts[0] != "lfs" and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self.reply(401, b'{"error": "Invalid username or password."}', {"X-Error-Code": "RepoNotFound"})
        elif self.command in ("POST", "PUT") and self.upload(parts, body):
            pass
        elif parts[0] == "api":
            self.api(parts[1:], parse_qs(address.query), body)
        else:
            self.file(["models", *parts] if parts[0] not in ("datasets", "models") else parts)

    do_HEAD = do_POST = do_PUT = do_GET

    def upload(self, parts: list[str], body: bytes) -> bool:
        """Answer a request by which a client uploads; False if it is none."""
        hub, answer = self.server, dict[str, Any]()
        if parts[0] == "lfs":
            hub.uploaded[parts[1]] = body
        elif parts[-1] == "batch":
            asked = json.loads(body)["objects"]
            for one in asked:
                if one["oid"] not in hub.uploaded:
                    one["actions"] = {"upload": {"href": f"{hub.address}/lfs/{one['oid']}"}}
            answer = {"transfer": "basic", "objects": asked}
        elif parts == ["api", "repos", "create"]:
            given = json.loads(body)
            name = f"{given.get('type', 'model')}s/{given['organization']}/{given['name']}"
            if name in hub.private:
                self.reply(409, json.dumps({"url": f"{hub.address}/{name.removeprefix('models/')}"}).encode(), {})
                return True
            hub.private[name] = bool(given.get("private", given.get("visibility") == "private"))
            hub.put(name, {})
            answer = {"url": f"{hub.address}/{name.removeprefix('models/')}"}
        elif parts[4:5] == ["preupload"]:
            answer = {"files": [self.mode(self.newest(parts), one) for one in json.loads(body)["files"]]}
        elif parts[4:5] == ["commit"]:
            made = hub.put("/".join(parts[1:4]), self.newest(parts) | dict(self.changes(body)))
            answer = {"commitUrl": f"{hub.address}/{'/'.join(parts[2:4])}/commit/{made}", "commitOid": made}
        elif parts[:2] != ["api", "validate-yaml"]:
            return False
        self.reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})
        return True

    def newest(self, parts: list[str]) -> dict[str, bytes]:
        found = self.server.files("/".join(parts[1:4]), "main")
        return {} if found is None else found[1]

    @staticmethod
    def mode(files: dict[str, bytes], asked: dict[str, Any]) -> dict[str, Any]:
        path = asked["path"]
        known = entry(path, files[path]) if path in files else {}
        mode = "lfs" if asked["size"] >= LARGE else "regular"
        return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": known.get("lfs", known).get("oid")}

    def changes(self, body: bytes) -> Iterator[tuple[str, bytes]]:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                yield line["value"]["path"], base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                yield line["value"]["path"], self.server.uploaded[line["value"]["oid"]]

    def api(self, parts: list[str], query: dict[str, list[str]], body: bytes) -> None:
        repository, rest = "/".join(parts[:3]), parts[3:]
        what, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        found = self.server.files(repository, revision)
        if found is None:
            known = repository in self.server.repositories
            code = "RevisionNotFound" if known else "RepoNotFound"
            self.reply(404, json.dumps({"error": f"{code}: {repository}"}).encode(), {"X-Error-Code": code})
            return
        sha, files = found
        if what == "revision":
            siblings = [{"rfilename": path} for path in files]
            answer: Any = {"id": "/".join(parts[1:3]), "sha": sha, "siblings": siblings, "private": False, "tags": []}
        elif what == "paths-info":
            asked = self.paths(body)
            answer = [entry(path, files[path]) for path in asked if path in files]
            folders = [path for path in asked if any(name.startswith(f"{path}/") for name in files)]
            answer += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
        elif what != "tree":  # such as the tokens of Xet, a store that this hub does not have
            self.reply(404, b'{"error": "Sorry, we can\'t find the page you are looking for."}', {})
            return
        else:
            answer = self.tree(files, "/".join(rest[2:]), query.get("recursive") == ["true"])
        self.reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def paths(body: bytes) -> list[str]:
        text = body.decode()
        return list(json.loads(text)["paths"]) if text.startswith("{") else parse_qs(text).get("paths", [])

    @staticmethod
    def tree(files: dict[str, bytes], below: str, recursive: bool) -> list[dict[str, Any]]:
        start = f"{below}/" if below else ""
        listed: dict[str, dict[str, Any]] = {}
        for path, content in files.items():
            inner = path.removeprefix(start)
            if path.startswith(start):
                for depth in range(1, inner.count("/") + 1 if recursive else min(1, inner.count("/")) + 1):
                    folder = start + "/".join(inner.split("/")[:depth])
                    listed[folder] = {"type": "directory", "path": folder, "oid": "0" * 40, "size": 0}
                if recursive or "/" not in inner:
                    listed[path] = entry(path, content)
        return [listed[path] for path in sorted(listed)]

    def file(self, parts: list[str]) -> None:
        repository, kind, revision, path = "/".join(parts[:3]), parts[3], parts[4], "/".join(parts[5:])
        found = self.server.files(repository, revision)
        if found is None or path not in found[1]:
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        sha, content = found[0], found[1][path]
        about = entry(path, content)
        tag = about.get("lfs", about)["oid"]
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if kind == "resolve" and "lfs" in about:
            headers |= {"Location": f"/{repository}/cdn/{sha}/{path}", "X-Linked-Size": str(len(content))}
            self.reply(302, b"", headers | {"X-Linked-Etag": f'"{tag}"'})
            return
        status = 200
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = int(last) + 1 if last else len(content)
            headers["Content-Range"] = f"bytes {first}-{min(end, len(content)) - 1}/{len(content)}"
            content, status = content[int(first) : end], 206
        self.server.sent += len(content) * (self.command == "GET")
        if self.server.broken and self.command == "GET":
            self.server.broken -= 1
            self.reply(status, content, headers, sent=len(content) // 2)
            return
        self.reply(status, content, headers)

    def reply(self, status: int, content: bytes, headers: dict[str, str], sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:sent])
        if sent is not None:
            self.close_connection = True
