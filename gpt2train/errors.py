"""Errors shown to the user, each in one line with cause, location and remedy, and redaction of secrets in them."""

import codecs
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

# A URL may carry a password before its host, or a signature in its query; neither may reach a log. The user part ends
# at the last @ of the authority. A password with a slash in it (`user:pa/ss@host`) begins with a colon that no port
# number follows. One slash or several: a mistyped URL holds the same secret.
_USER = re.compile(r"(?<=:/)(/*)([^\s/@:]+:(?!\d+(?:/|\s|$))\S*|[^\s/]*)@(\S*)")
_QUERY = re.compile(r"(:/+[^\s?#]+)([?#])\S*?(?=['\"),;:.\]}>]*(?:\s|$))")
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # by first bytes
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as Windows writes text; no UTF-8 begins with these bytes
UTF16_REMEDY = "it is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # begins what a clone without Git LFS has for a large file
LFS_REMEDY = "is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"
_MIN_SECRET = 3  # characters; shorter secrets are not searched for by themselves, since they occur in any text


def not_utf8(error: UnicodeDecodeError) -> str:
    """Say what the bytes of a file are that are not UTF-8, and the remedy."""
    if error.object.startswith(UTF16):
        return UTF16_REMEDY
    return f"it is not UTF-8 ({error.reason} at byte {error.start:,}); convert it"


def check_not_utf16(content: bytes, file: object) -> None:
    """Raise a UserError if a file of lines is UTF-16, which `json.loads` would guess for its first line alone."""
    if content.startswith(UTF16):
        raise UserError(f"{file}: {UTF16_REMEDY}")


def check_not_packed(content: bytes, file: object, remedy: str = "unpack it") -> None:
    """Raise a UserError if a file of lines of JSON is compressed."""
    if kind := next((kind for start, kind in PACKED.items() if content.startswith(start)), None):
        raise UserError(f"{file} is compressed by {kind}; {remedy}")


def check_no_pointer(content: bytes, file: object) -> None:
    """Raise a UserError if a file is what Git LFS keeps in its place."""
    if content.startswith(LFS_POINTER):
        raise UserError(f"{file} {LFS_REMEDY}")


def redact(text: str, *addresses: str) -> str:
    """Replace the user part, the query and the fragment of each URL in a text by an ellipsis.

    Secrets of the addresses are replaced anywhere in the text, since a library may quote a part of a URL.
    """
    for secret in sorted({one for address in addresses for one in _secrets(address)}, key=len, reverse=True):
        text = text.replace(secret, "…")
    return _QUERY.sub(r"\1\2…", _USER.sub(_without_user, text))


def _without_user(match: re.Match[str]) -> str:
    slashes, user, rest = match.groups()
    # With a question mark before the @, a password cannot be distinguished from the beginning of a query.
    return f"{slashes}…" if "?" in user or "#" in user else f"{slashes}…@{_USER.sub(_without_user, rest)}"


def redact_values(value: Any) -> Any:
    """Redact every string of a JSON value, keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact_values(key): redact_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_values(inner) for inner in value]
    return value


def redact_error(error: Exception) -> Exception:
    """Remove the secrets of URLs from an error's message.

    Returns:
        The error itself, changed in place, or a RunError or TransientError if its message cannot be changed.
    """
    if redact(str(error)) == str(error):
        return error
    error.args = tuple(redact_values(list(error.args)))
    for name in ("filename", "filename2"):
        if isinstance(value := getattr(error, name, None), str):
            setattr(error, name, redact(value))
    if redact(str(error)) == str(error):
        return error
    transient = isinstance(error, ConnectionError | TimeoutError)
    return (TransientError if transient else RunError)(f"{type(error).__name__}: {error}")


@contextmanager
def redacted_errors() -> Iterator[None]:
    """Redact the message of an error that leaves the block."""
    try:
        yield
    except Exception as error:
        if (redacted := redact_error(error)) is not error:
            raise redacted from None
        raise


def redacted_traceback(error: BaseException) -> str:
    """Format the traceback of an error as Python does, redacted."""
    return redact("".join(traceback.format_exception(error)))


def _secrets(address: str) -> Iterator[str]:
    """Yield the password and the query values of a URL, verbatim, decoded and encoded."""
    found = [match.group(2) for match in _USER.finditer(address)]
    found += [password for user in found if (password := user.partition(":")[2])]
    query = "&".join(re.split(r"[?#]", address)[1:]) if "://" in address else ""
    found += [value for pair in re.split("[&;]", query) if (value := pair.rpartition("=")[2])]
    for secret in found:
        for form in (secret, unquote(secret), unquote_plus(secret), quote(secret, safe=""), quote_plus(secret)):
            if len(form) >= _MIN_SECRET:
                yield form


def is_failure(error: BaseException) -> bool:
    """Return True for an error of a program: any `Exception`, and what libraries in Rust raise for a panic."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class RedactedError(Exception):
    """Base of the package's errors: the secrets of URLs in the message are redacted."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class UserError(RedactedError):
    """A mistake of the user, such as a wrong setting or a missing file. The command exits with code 2."""


class DamagedFileError(UserError):
    """A file whose compressed data or format is damaged or ends too soon; its contents before that were read.

    Attributes:
        fault: what is wrong, without the file's name.
    """

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = redact(fault)


def is_io_failure(error: Exception) -> bool:
    """Return True if a disk or a connection failed; libraries report damaged data as an `OSError` without a number."""
    return isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError)


class RunError(RedactedError):
    """A failure at run time, such as a full disk or a damaged file. The command exits with code 1."""


class TransientError(RunError):
    """A failure that may pass by itself, such as a rank that died or hung, or a lost machine.

    A retry starts from what is committed. A command that ends with this error exits with code 1.
    """
