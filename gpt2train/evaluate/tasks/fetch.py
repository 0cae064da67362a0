"""Data files of tasks from the addresses of their descriptions, by hash; nothing is fetched unless it is asked for."""

import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from gpt2train.errors import UserError
from gpt2train.evaluate.tasks.description import Task
from gpt2train.evaluate.tasks.items import DataFile, has_data
from gpt2train.store.files import write_atomic
from gpt2train.store.inner_path import is_inner

RECORD = "fetched.json"  # in the folder of the data: name -> url and hash of each fetched file
MAX_BYTES = 1 << 28  # of a file; the largest one of CORE has 23 MB
TIMEOUT_SECONDS = 30.0  # without a byte
MAX_SECONDS = 900.0  # of a file
BLOCK = 1 << 16

Fetched = Callable[[str], None]  # gets a line on each fetched file


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Handler that follows redirects within https, and from http to http or https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request of the new address, or raise `HTTPError`."""
        if urlsplit(newurl).scheme not in {"https", urlsplit(req.full_url).scheme}:
            raise urllib.error.HTTPError(newurl, code, "redirect to another scheme", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_data(task: Task, name: str, folder: Path, fetched: Fetched) -> None:
    """Fetch the data file of a task into a folder, which is created, unless the folder has data of the task.

    `fetched` is called with a line on the file.

    Raises:
        UserError: the description has no address, the file cannot be fetched, is too large, or is not the one of the
            hash.
    """
    if folder.is_file() or has_data(task, folder):
        return
    if not task.url:
        origin = f" (from {task.source})" if task.source else ""
        raise UserError(f"task {name}: its description has no url to fetch; put the data into {folder}{origin}")
    target = _target(task, name)
    content = _download(task.url, name)
    found = hashlib.sha256(content).hexdigest()
    if task.sha256 and found != task.sha256:
        raise UserError(
            f"task {name}: {task.url} has another file, sha256 {found} in place of {task.sha256}; give the data by hand"
        )
    record = _read_record(folder)
    known = record.get(target, {}).get("sha256", found)
    if known != found:
        raise UserError(
            f"task {name}: {task.url} has changed since the first fetch, sha256 {found} in place of {known}; remove "
            f"its entry from {folder / RECORD} to take the new one"
        )
    write_atomic(folder / target, content)
    entry = {target: {"url": task.url, "sha256": found}}
    write_atomic(folder / RECORD, (json.dumps(record | entry, indent=1, sort_keys=True) + "\n").encode())
    fetched(f"fetched: {folder / target} ({len(content):,} bytes, sha256 {found}) from {task.url}")


def check_fetched(folder: Path, data: Sequence[DataFile]) -> None:
    """Check that fetched files are as they were fetched; other files are not looked at.

    Raises:
        UserError: a file has changed.
    """
    record = _read_record(folder) if folder.is_dir() else {}
    known = {str(folder / name): entry.get("sha256") for name, entry in record.items()}
    for file in data:
        if file.name in known and hashlib.sha256(file.content).hexdigest() != known[file.name]:
            remedy = f"remove it to fetch it again, or remove its entry from {folder / RECORD}"
            raise UserError(f"{file.name} has changed since it was fetched; {remedy}")


def _read_record(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / RECORD
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}); remove it") from error
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise UserError(f"{path} is no record of fetched files; remove it")
    return found


def _target(task: Task, name: str) -> str:
    """Return the path of the fetched file below the folder: the first name of the data, without `**/`."""
    path = PurePosixPath(task.data[0].removeprefix("**/"))
    if not is_inner(str(path)) or "*" in str(path) or path.name == RECORD:
        raise UserError(f"task {name}: data: {task.data[0]!r} is no name for a fetched file; put a plain name first")
    return str(path)


def _download(url: str, name: str) -> bytes:
    """Return the content at an address; UserError if it cannot be fetched, is empty, or above `MAX_BYTES`."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"task {name}: url: {url!r} is no http or https address; correct it")
    opener = urllib.request.build_opener(_SameScheme())
    request = urllib.request.Request(url, headers={"User-Agent": "gpt2train"})
    content, end = bytearray(), time.monotonic() + MAX_SECONDS
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            size = response.headers.get("Content-Length")
            while block := response.read1(BLOCK):
                content += block
                if len(content) > MAX_BYTES:
                    raise UserError(f"task {name}: {url} has more than {MAX_BYTES:,} bytes; give the data by hand")
                if time.monotonic() > end:
                    raise UserError(f"task {name}: {url} takes more than {MAX_SECONDS:.0f} s; give the data by hand")
    except (OSError, ValueError) as error:
        cause = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        reason = " ".join(str(cause).split()) or type(error).__name__
        raise UserError(f"task {name}: cannot fetch {url}: {reason}; give the data by hand") from error
    if not content or (size is not None and size.isdecimal() and int(size) != len(content)):
        raise UserError(f"task {name}: {url} gave {len(content):,} bytes of {size}; try again")
    return bytes(content)
