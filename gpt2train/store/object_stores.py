"""Object stores behind fsspec: options for S3 and GCS, and translation of their errors.

Credentials and endpoints come only from the environment, as each store's own tools read them (`AWS_…` variables and
profiles, Google's application default credentials; `AWS_ENDPOINT_URL`, `STORAGE_EMULATOR_HOST`, `FSSPEC_…`), so that
they are never part of a setting, a manifest or a log.
"""

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import fsspec

from gpt2train.errors import UserError
from gpt2train.extras import needs_extra

BLOCK = 4 * 2**20  # bytes of read-ahead; the default of s3fs is 50 MiB, most of which is wasted when Parquet is read
MAX_ATTEMPTS = 8  # per request, with botocore's exponential backoff and jitter: covers an outage of half a minute
CONNECT_SECONDS, READ_SECONDS = 10, 60
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
BUSY = (errno.EBUSY, errno.ETIMEDOUT, errno.EIO)  # s3fs translates throttling and server errors into these
# Otherwise gcsfs queries the type of a bucket by gRPC, which takes a minute to fail where only HTTP is available. Only
# flat buckets are needed.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
_STORE = re.compile(rf"(?:^|::)(?:{'|'.join(EXTRAS)}):", re.IGNORECASE)
# The stores' own rules are stricter, and differ: old buckets of S3 have capitals, those of other servers underscores.
# Of an access point, only the beginning.
_BUCKET = re.compile(r"//([\w.-]{3,255}(/|$)|arn:)", re.ASCII)
MODULES = ("botocore", "aiobotocore", "aiohttp", "gcsfs", "google")  # whose exceptions are errors of a store


def open_store(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a URL and the path in it.

    Raises:
        UserError: The URL holds credentials or no valid bucket, its protocol is unknown, or its extra is not installed.
    """
    protocol = url.partition("://")[0] if "://" in url else "file"
    check_store_url(url)
    if protocol != "file" and "@" in urlsplit(url).netloc:
        raise _credentials(url)
    try:
        return fsspec.core.url_to_fs(url, **_options(protocol))
    except ImportError as error:
        if extra := EXTRAS.get(protocol):
            raise needs_extra(f"{url} ({error})", extra) from error
        raise UserError(f"{url} needs a package that is not installed ({error}); install it") from error
    except ValueError as error:
        raise UserError(f"cannot use {url}: {error}; give a path, or a URL such as s3://bucket/folder") from error


def check_store_url(url: str) -> None:
    """Check that the URL of an object store names a bucket, and holds no credentials.

    Its library would take credentials for a part of the bucket's name, and would ask the store for any name.

    Raises:
        UserError: The URL holds credentials, or its bucket is missing or cannot exist.
    """
    if not (found := list(_STORE.finditer(url))):
        return
    rest = url[found[-1].end() :]
    first = rest.lstrip("/").partition("/")[0]
    if "@" in url and ("@" in first or ":" in first):
        raise _credentials(url)
    if not _BUCKET.match(rest):
        named = rest.startswith("//") and rest[2:].partition("/")[0]
        what = f"{named!r} cannot be the name of a bucket" if named else "it names no bucket"
        kind = found[-1].group().rpartition("::")[2].lower()
        raise UserError(f"cannot use {url}: {what}; give {kind}//bucket/folder with the name of your bucket")


def _credentials(url: str) -> UserError:
    return UserError(f"{url} holds credentials; leave them out and set them in the environment (docs/data/scale.md)")


def _options(protocol: str) -> dict[str, Any]:
    """Return the fsspec options of a store. Listings are not cached, since other processes may write."""
    match EXTRAS.get(protocol):
        case "s3":
            retries = {"mode": "standard", "max_attempts": MAX_ATTEMPTS}
            timeouts = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}
            return {"use_listings_cache": False, "config_kwargs": {"retries": retries, **timeouts}}
        case "gcs":
            import aiohttp

            logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs the traceback of what it raises
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
            return {"use_listings_cache": False, "requests_timeout": timeout}
    return {}


@contextlib.contextmanager
def translate_store_errors(url: str, writing: bool = False) -> Iterator[None]:
    """Turn a store's errors into errors of one line with a remedy; temporary ones become `ConnectionError`.

    On `writing`, a missing file means a missing bucket.

    Raises:
        UserError: There are no credentials, no permission, or no such bucket.
        ConnectionError: The store does not answer or is too busy.
    """
    try:
        yield
    except PermissionError as error:
        raise UserError(f"the store refuses {url} ({_reason(error)}); check credentials and rights") from error
    except FileNotFoundError as error:
        if writing or "bucket does not exist" in str(error):
            raise UserError(f"the bucket of {url} does not exist; create it, or give another URL") from error
        raise
    except OSError as error:
        if error.errno in BUSY:
            raise ConnectionError(f"the store is too busy for {url} ({_reason(error)}); run again to go on") from error
        if _is_of_store(error):  # aiohttp's, of a host that cannot be reached
            raise _unreachable(url, error) from error
        raise
    except Exception as error:
        name = type(error).__name__
        if "Credential" in name or "TokenError" in name or "RefreshError" in name:
            raise UserError(
                f"no valid credentials for {url} ({name}); set them in the environment (docs/data/scale.md)"
            ) from error
        if _is_of_store(error):
            raise _unreachable(url, error) from error
        raise


def _is_of_store(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in MODULES


def _unreachable(url: str, error: Exception) -> ConnectionError:
    return ConnectionError(f"the store does not answer for {url} ({_reason(error)}); run again to go on")


def _reason(error: Exception) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())[:160]


def abort_uploads(fs: fsspec.AbstractFileSystem, path: str) -> int:
    """Abort the multipart uploads that killed runs left below a path, and return their number.

    S3 bills them although they are invisible; GCS drops them after a week. Does nothing if they cannot be listed.
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
    """Return True if a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: too large for a process id
        return False
    except PermissionError:
        return True
    return True
