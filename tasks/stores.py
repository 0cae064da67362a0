"""Object stores behind fsspec: how S3 and GCS are opened, and what they say when something is wrong.

Credentials and endpoints come from the environment alone, as each store's own tools read them (`AWS_…` variables and
profiles, Google's application default credentials; `AWS_ENDPOINT_URL`, `STORAGE_EMULATOR_HOST`, `FSSPEC_…`), so none is
ever part of a setting, a manifest or a log.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import fsspec

from gpt2train.errors import UserError

BLOCK = 4 * 2**20  # bytes read ahead: s3fs takes 50 MiB unless told, most of it thrown away when Parquet is read
ATTEMPTS = 8  # of a request, with exponential backoff and jitter by botocore: about half a minute of an outage
CONNECT_SECONDS, READ_SECONDS = 10, 60
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
BUSY = (errno.EBUSY, errno.ETIMEDOUT, errno.EIO)  # as s3fs translates throttling and a server's own errors
# gcsfs would ask by gRPC what kind a bucket is, a minute long where only HTTP is spoken. Flat buckets are all we need.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
MODULES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google")


def open_store(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URL, and the path in it.

    Raises:
        UserError: the URL holds credentials, its protocol is not known, or its extra is not installed.
    """
    protocol = url.partition("://")[0] if "://" in url else "file"
    if protocol != "file" and "@" in urlsplit(url).netloc:
        raise UserError(f"{url} holds credentials; leave them out and set them in the environment (docs/scale.md)")
    try:
        return fsspec.core.url_to_fs(url, **_options(protocol))
    except ImportError as error:
        extra = EXTRAS.get(protocol)
        how = f"install gpt2train[{extra}]" if extra else "install the fsspec package for it"
        raise UserError(f"{url} needs a package that is not installed ({error}); {how}") from error
    except ValueError as error:
        raise UserError(f"cannot use {url}: {error}; give a path, or a URL such as s3://bucket/folder") from error


def _options(protocol: str) -> dict[str, Any]:
    """What every access to a store sets. No listing is kept: another process may have written since."""
    match EXTRAS.get(protocol):
        case "s3":
            retries = {"mode": "standard", "max_attempts": ATTEMPTS}
            waits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
            return {"use_listings_cache": False, "config_kwargs": {"retries": retries, **waits}}
        case "gcs":
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
            return {"use_listings_cache": False, "requests_timeout": limits}
    return {}


@contextlib.contextmanager
def clear_store_errors(place: str, writing: bool = False) -> Iterator[None]:
    """Turn a store's refusals into one line that says what to do. What may pass by itself becomes `ConnectionError`.

    Raises:
        UserError: no credentials, no permission, no such bucket.
        ConnectionError: the store does not answer, or is too busy.
    """
    try:
        yield
    except PermissionError as error:
        raise UserError(
            f"the store refuses {place} ({_said(error)}); check the credentials and their rights"
        ) from error
    except FileNotFoundError as error:
        if writing or "bucket does not exist" in str(error):
            raise UserError(f"the bucket of {place} does not exist; make it, or give another URL") from error
        raise
    except OSError as error:
        if error.errno in BUSY:
            raise ConnectionError(f"the store is too busy for {place} ({_said(error)}); run again to go on") from error
        raise
    except Exception as error:
        name = type(error).__name__
        if "Credential" in name or "TokenError" in name or "RefreshError" in name:
            raise UserError(
                f"no credentials that work for {place} ({name}); set them in the environment (docs/scale.md)"
            ) from error
        if type(error).__module__.partition(".")[0] in MODULES:
            raise ConnectionError(
                f"the store does not answer for {place} ({_said(error)}); run again to go on"
            ) from error
        raise


def _said(error: Exception) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())[:160]


def abort_uploads(fs: fsspec.AbstractFileSystem, path: str) -> int:
    """Abort the multipart uploads that killed runs left below a path, and count them: S3 bills what nobody sees.

    Nothing where the store needs no such thing (GCS forgets them after a week) or does not let us look.
    """
    if not hasattr(fs, "list_multipart_uploads"):
        return 0
    bucket, _, prefix = path.partition("/")
    aborted = 0
    with contextlib.suppress(PermissionError, NotImplementedError):
        for upload in fs.list_multipart_uploads(bucket):
            if upload["Key"].startswith(f"{prefix}/" if prefix else ""):
                fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                aborted += 1
    return aborted


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
