"""Addresses of the Hugging Face Hub: `hf://datasets/ORG/NAME/PATH`, or with a revision `hf://datasets/ORG/NAME@REV/PATH`.

The client library reads the token (`HF_TOKEN`), a mirror (`HF_ENDPOINT`) and its cache from the environment.
"""

import time
from typing import Any

from gpt2train.errors import UserError, redact

HUB = "hf://"
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before a busy hub is asked again; the library does so for files alone
BUSY = (429, 500, 502, 503, 504)


def pinned(url: str) -> str:
    """Return an address with the commit of its revision, so that a run reads one state of a repository.

    A URL of another kind is returned as it is.

    Raises:
        UserError: The hub has no such repository or revision, or does not answer.
    """
    if not url.startswith(HUB):
        return url
    try:
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError as error:
        raise UserError(f"{url} needs huggingface_hub; install gpt2train[pipeline]") from error
    try:
        kind, name, commit, path = _resolved(url)
    except GatedRepoError as error:
        raise UserError(f"{url} is gated; accept its terms on the hub, and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{url}: the repository has no such revision; check what follows the @") from error
    except (RepositoryNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"{url}: the hub has no such repository, or it is private; check it, or set HF_TOKEN"
        ) from error
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"{url} is no address of the hub; write hf://datasets/ORG/NAME/PATH") from error
    except Exception as error:  # of the HTTP client, whichever the library uses
        reason = " ".join(redact(str(error), url).split())[:160]
        raise UserError(f"cannot ask the hub for {url} ({reason}); try again, or set HF_ENDPOINT") from error
    return f"{HUB}{'' if kind == 'model' else f'{kind}s/'}{name}@{commit}/{path}".rstrip("/")


def _resolved(url: str) -> tuple[str, str, str, str]:
    """Return the kind of the repository, its name, the commit, and the path in it."""
    from huggingface_hub import HfApi, HfFileSystem

    for pause in (*PAUSES, None):
        try:
            found: Any = HfFileSystem().resolve_path(url)
            about = HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision)
            return found.repo_type, found.repo_id, str(about.sha), found.path_in_repo
        except Exception as error:
            if pause is None or getattr(getattr(error, "response", None), "status_code", None) not in BUSY:
                raise
            time.sleep(pause)
    raise AssertionError
