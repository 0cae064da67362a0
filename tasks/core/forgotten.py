"""URLs and domains that an output folder must never hold again (`gpt2train forget`).

`forgotten.json` in the output folder has hashes, no URL: a reader of it can test a URL, and learns none that cannot be
guessed. Every step that takes URLs, pages or texts from outside drops what is listed, with the reason `forgotten`, and
has the list in its fingerprint. In place of the URL its files have `forgotten:` and the beginning of the hash.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gpt2train.errors import UserError
from gpt2train.settings import Record
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import canonical, digest
from gpt2train.store.removal import FORGOTTEN
from tasks.core.reject_limits import FORGOTTEN as REASON

URL_COLUMNS = ("url", "final_url")  # columns that name the page of a row
NAME_DIGITS = 32  # of a hash in place of a URL
_SCHEME = re.compile(r"(?:([a-z][a-z0-9+-]{0,30}):)?([/\\]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"[^/\\?#\s]*")


class Forgotten(Record):
    """Hashes of URLs and domains; falsy if there are none."""

    urls: tuple[str, ...] = ()  # SHA-256 of each URL in the form of `url_key`, sorted
    domains: tuple[str, ...] = ()  # SHA-256 of each domain, whose subdomains are meant too, sorted
    aliases: dict[str, str] = {}
    """Hash of a list of URLs that a removal has rewritten -> its hash before, by which later steps know it."""

    def __bool__(self) -> bool:
        return bool(self.urls or self.domains)

    @cached_property
    def _hashes(self) -> frozenset[str]:
        return frozenset((*self.urls, *self.domains))

    @property
    def inputs(self) -> dict[str, str]:
        """Input of a step that honours the list, for its fingerprint; empty for an empty list."""
        return {"forgotten": digest([list(self.urls), list(self.domains)])} if self else {}

    def matches(self, *urls: str | None) -> bool:
        """Return True if one of these URLs is listed, or is of a listed domain."""
        return bool(self) and any(url and not self._hashes.isdisjoint(_hashes_of(url)) for url in urls)

    def matches_host(self, host: str) -> bool:
        """Return True if a host is a listed domain or below one."""
        return not self._hashes.isdisjoint(_host_hashes(host))

    def matches_row(self, row: Mapping[str, Any]) -> bool:
        """Return True if the row of a file is of a listed page."""
        return self.matches(*(row.get(name) for name in URL_COLUMNS))

    def united(self, other: "Forgotten") -> "Forgotten":
        """Return both lists in one."""
        return Forgotten(
            urls=tuple(sorted({*self.urls, *other.urls})),
            domains=tuple(sorted({*self.domains, *other.domains})),
            aliases=self.aliases | other.aliases,
        )


def url_key(url: str) -> str:
    """Return the form in which URLs are compared: without scheme, user name, default port and fragment.

    Host and percent-encoding are normalised. A path after a host needs no scheme. Any other text, such as the name of a
    user's file, is compared as it is.
    """
    return _parts(url)[1]


def url_hash(url: str) -> str:
    """Return the hash of a URL in the list."""
    return _hash("url", url_key(url))


def domain_hash(domain: str) -> str:
    """Return the hash of a domain in the list."""
    return _hash("domain", domain)


def name_of(url: str) -> str:
    """Return what stands in place of a forgotten URL."""
    return url if url.startswith(f"{REASON}:") else f"{REASON}:{url_hash(url)[:NAME_DIGITS]}"


def encode_forgotten(forgotten: Forgotten) -> bytes:
    """Return the content of the list's file."""
    return canonical(forgotten.model_dump(mode="json")) + b"\n"


def read_forgotten(root: Folder) -> Forgotten:
    """Read the list of an output folder; empty if there is none.

    Raises:
        UserError: The list is damaged.
    """
    try:
        return Forgotten.model_validate_json(root.read_bytes(FORGOTTEN))
    except (FileNotFoundError, NotADirectoryError):
        return Forgotten()
    except ValueError as error:
        raise UserError(f"{root.url}/{FORGOTTEN} is damaged; restore it, or forget its URLs again") from error


def forgotten_beside(folder: Folder) -> Forgotten:
    """Read the list of the output folder that holds the folder of a step."""
    return read_forgotten(Folder(folder.url.rpartition("/")[0]))


def _hashes_of(url: str) -> set[str]:
    host, key = _parts(url)
    return {_hash("url", key), _hash("url", url), *_host_hashes(host)}


def _parts(url: str) -> tuple[str, str]:
    """Return host, empty if there is none, and key of a URL."""
    return _parsed(url.strip()) or _parsed(_repaired(url.strip())) or ("", url)


def _parsed(url: str) -> tuple[str, str] | None:
    from yarl import URL  # 0.05 s, which a worker needs only if there is a list

    try:
        parsed = URL(url)
        host, port = (parsed.raw_host or "").lower().rstrip("."), parsed.port
    except ValueError:
        return None
    if parsed.scheme not in ("http", "https") or not host:
        return None
    query = f"?{parsed.raw_query_string}" if parsed.raw_query_string else ""
    shown = "" if port in (80, 443, None) else f":{port}"
    return host, f"//{host}{shown}{parsed.raw_path or '/'}{query}"


def _repaired(text: str) -> str:
    r"""Return the URL that an address means which is none as it stands; empty if it has no host.

    Data sets have `www.a.example/x`, `//a.example` and `ftp://a.example`; browsers repair `https:a.example` and
    `http:\a.example`. A host alone may be the name of a file, and is left as it is.
    """
    found = _SCHEME.match(text)
    assert found
    scheme, slashes = (found[1] or "").lower(), len(found[2])
    authority = _AUTHORITY.match(text, found.end())
    assert authority
    rest = text[authority.end() :].replace("\\", "/")
    is_web = scheme in ("http", "https")
    has_host = is_web or slashes == 2 or (not scheme and not slashes and rest.startswith("/"))
    return f"http://{authority[0]}{rest}" if has_host and "." in authority[0].strip(".") else ""


def _host_hashes(host: str) -> set[str]:
    labels = host.lower().split(".") if host else []
    return {domain_hash(".".join(labels[start:])) for start in range(len(labels))}


def _hash(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind} {text}".encode(errors="surrogatepass")).hexdigest()
