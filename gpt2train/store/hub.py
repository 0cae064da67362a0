"""Addresses of the Hugging Face Hub: `hf://datasets/ORG/NAME/PATH`, of models `hf://ORG/NAME`, each with `@REV` or not.

The client library reads the token (`HF_TOKEN`), a mirror (`HF_ENDPOINT`) and its cache from the environment.
"""

import functools
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt2train.errors import UserError, redact
from gpt2train.extras import PIPELINE, needs_extra
from gpt2train.settings import in_home
from gpt2train.store.retry_after import retry_after

HUB = "hf://"
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before a busy hub is asked again; the library does so for files alone
MAX_WAIT_SECONDS = 300.0  # that a hub may ask for by Retry-After; the limits of rate of the public one are of as many
BUSY = (429, 500, 502, 503, 504)
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")  # of a model
AT_COMMIT = re.compile(r"(hf://(?:\w+s/)?[^/@]+/[^/@]+)@([^/]+)(?:/.*)?")
CACHED = re.compile(r".*/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/.*)?")  # in the client library's cache
OFFLINE, BY_DEFAULT = "HF_HUB_OFFLINE", "On"  # value that the package `flows` sets; a user's own is obeyed
XET = "HF_HUB_DISABLE_XET"  # of the library: with it, it uploads as to a hub without a store of that kind
TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"  # of the library: with it, it asks for nothing that no address names
# Of a model: no pickles, which could run code, and no weights of other libraries.
TOKENIZER_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
MODEL_FILES = (*TOKENIZER_FILES, "*.safetensors")


def allow(address: str) -> None:
    """Let the client library ask the hub for an address of it; UserError if the user's environment forbids that."""
    if not address.startswith(HUB):
        return
    if TELEMETRY not in os.environ:
        set_for_client(TELEMETRY, on=True)
    if os.environ.get(OFFLINE) == BY_DEFAULT:
        set_for_client(OFFLINE, on=False)
    elif os.environ.get(OFFLINE, "0").upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"{address} is on the hub, but {OFFLINE} is set; unset it, or give a local folder")


def set_for_client(name: str, *, on: bool) -> None:
    """Set a variable of the client library for this process, also if it is imported already, and those it starts."""
    os.environ[name] = str(int(on))
    if constants := sys.modules.get("huggingface_hub.constants"):
        vars(constants)[name] = on


def pinned(url: str) -> str:
    """Return an address with the commit of its revision, so that a run reads one state of a repository.

    A process asks once for each address. A URL of another kind is returned as it is.

    Raises:
        UserError: The hub has no such repository or revision, or does not answer.
    """
    if not url.startswith(HUB):
        return url
    allow(url)
    return _pinned(url, os.environ.get("HF_ENDPOINT"))


@functools.lru_cache(maxsize=1000)
def _pinned(url: str, _: str | None) -> str:
    try:
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError as error:
        raise needs_extra(url, PIPELINE) from error
    try:
        kind, name, commit, path = _resolved(url)
    except GatedRepoError as error:
        raise UserError(f"{url} is gated; accept its terms on the hub, and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{url}: the repository has no such revision; check what follows the @") from error
    except (RepositoryNotFoundError, FileNotFoundError) as error:
        raise UserError(f"{url}: the hub has no such repository, or it is private; check it or set HF_TOKEN") from error
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{url} is no address of the hub; write hf://datasets/ORG/NAME/PATH") from error
    except Exception as error:  # of the HTTP client, whichever the library uses
        raise _unreachable(url, error) from error
    return f"{HUB}{'' if kind == 'model' else f'{kind}s/'}{name}@{commit}/{path}".rstrip("/")


def model_address(place: str | Path) -> str:
    """Return the address of a model that is given by its name on the hub, `ORG/NAME[@REV]`; other texts as they are.

    What lies in a local folder, or should, is no name of the hub: nothing is asked for a mistyped path.
    """
    text = in_home(str(place))
    if text.startswith("hf:/") and not text.startswith(HUB):  # a path has one slash
        return f"{HUB}{text.removeprefix('hf:/')}"
    is_name = NAME.fullmatch(text) and not Path(text).exists() and not Path(text).parent.exists()
    return f"{HUB}{text}" if is_name else text


def local_copy(place: str | Path, files: Sequence[str] = MODEL_FILES) -> Path:
    """Return the folder of a model: one that is named as `model_address` knows it is downloaded first.

    The folder is that of the client library's cache; its name is the commit. `files` can be those of its tokenizer.

    Raises:
        UserError: as `pinned`; or the address is that of a dataset, or of a part of a repository.
    """
    text = model_address(place)
    if not text.startswith(HUB):
        return Path(text)
    try:
        address = pinned(text)
    except UserError as error:
        if str(place) in (text, text.replace("//", "/", 1)):
            raise
        raise UserError(f"there is no folder {place}, and {error}") from error
    name, _, commit = address.removeprefix(HUB).partition("@")
    if name.count("/") != 1 or "/" in commit:
        raise UserError(f"{text} is no model of the hub; write hf://ORG/NAME, or hf://ORG/NAME@REVISION")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=commit, allow_patterns=list(files)))
    except Exception as error:  # of the HTTP client, whichever the library uses
        raise _unreachable(text, error) from error


def repository_of(place: str | Path) -> tuple[str, str] | None:
    """Return the address of a repository and the commit that a pinned address, or a path in the cache, is of."""
    if found := AT_COMMIT.fullmatch(str(place)):
        return found[1], found[2]
    if found := CACHED.fullmatch(Path(place).as_posix()):
        return f"{HUB}{found[1]}/{found[2]}", found[3]
    return None


def commits_in(read: Mapping[str, str]) -> dict[str, str]:
    """Return the commits of repositories among what a manifest says that its step read, by their addresses."""
    return {name: commit for name, commit in read.items() if name.startswith(HUB)}


def with_commit(place: str | Path) -> str:
    """Return the address with its commit of what lies in the cache of the client library; others as they are."""
    return "@".join(repository_of(place) or (str(place),))


def _unreachable(url: str, error: Exception) -> UserError:
    reason = " ".join(redact(str(error), url).split())[:160]
    return UserError(f"cannot ask the hub for {url} ({reason}); try again, or set HF_ENDPOINT")


def _resolved(url: str) -> tuple[str, str, str, str]:
    """Return the kind of the repository, its name, the commit, and the path in it."""
    from huggingface_hub import HfApi, HfFileSystem

    for pause in (*PAUSES, None):
        try:
            found: Any = HfFileSystem().resolve_path(url)
            about = HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision)
            return found.repo_type, found.repo_id, str(about.sha), found.path_in_repo
        except Exception as error:
            response: Any = getattr(error, "response", None)
            if pause is None or getattr(response, "status_code", None) not in BUSY:
                raise
            wait = retry_after(response.headers.get("Retry-After"))
            if wait is not None and wait > MAX_WAIT_SECONDS:
                raise
            time.sleep(pause if wait is None else wait)
    raise AssertionError
