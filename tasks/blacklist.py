"""URLs that are not worth a request are dropped: one reason each, the order of the list kept.

The rules are those of Megatron-LM's OpenWebText recipe (`blacklist_urls.py`), in its order, with its faults mended: a
missing comma let `.7z` and `.ai` through, the extension was looked for at the end of the whole address (so that a host
under `.app` or `.zip` was dropped, and a `#fragment` hid an extension), a regular expression refused international
host names, and the order of the output was that of a Python set.

Writes `urls/part-00000.parquet` (`url`, `source`), at most `shard_rows` rows each, and `urls/rejected/` twins.
"""

import functools
import hashlib
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import PurePosixPath
from urllib.parse import SplitResult, urlsplit

import fsspec
import idna
import pyarrow as pa
from pydantic import Field
from tld import get_tld

from gpt2train.errors import UserError
from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import commit_rows, rejected_row
from tasks.steps import Manifest, Outcome, Step, digest
from tasks.storage import Folder, read_any
from tasks.urls import UrlList

URLS = pa.schema([pa.field("url", pa.string(), nullable=False), pa.field("source", pa.string())])
_ENDINGS = """
3gp 7z ai aif apk app avi bin bmp bz2 css csv dat deb dmg doc docx exe gif gifv gz iso jar jpeg jpg js log mid midi mkv
mov mp3 mp4 mpeg mpg ogg ogv otf pdf pkg png pps ppt pptx psd py qt ram rar sql svg swf tar.gz tar tgz tiff ttf txt wav
webm wma wmv xls xlsx xml xz zip
"""
EXTENSIONS = tuple(f".{name}" for name in _ENDINGS.split())
PORTS = {"http": 80, "https": 443}
FORBIDDEN = re.compile("[\x00-\x1f\x7f\ufffd\ud800-\udfff]")  # controls, undecodable bytes, lone surrogates
HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))+")
IP_LIKE = re.compile(r"(?:.*\.)?(?:\d+|0x[0-9a-f]*)")  # a last label that is a number makes the host an IPv4 address


class BlacklistSettings(Settings):
    """Which URLs are dropped before anything is fetched."""

    min_length: int = Field(9, ge=0)
    """Shortest URL that is kept, in characters."""
    block_names: bool = True
    """Drop the built-in list of site names (media hosts, shops, social networks; tasks/data/blocked_names.txt)."""
    block_extensions: bool = True
    """Drop paths that end like a file that is no page (.pdf, .jpg, .zip, …)."""
    domain_lists: tuple[str, ...] = ()
    """Further lists of domains, one a line, sub-domains included: files, or folders as UT1 lays them out
    (`<category>/domains`, or `<category>.txt`)."""
    shard_rows: int = Field(10_000, ge=1)
    """URLs a file; a file is what the download fetches, and repeats when killed, at a time."""


@dataclass(frozen=True)
class Rules:
    """What `classify` compares with.

    Attributes:
        names: registered domains without their suffix.
        extensions: endings of the path, with the dot, lower case.
        listed: domain -> category.
        min_length: of the URL, in characters.
    """

    names: frozenset[str] = frozenset()
    extensions: tuple[str, ...] = ()
    listed: Mapping[str, str] = field(default_factory=dict)
    min_length: int = 0


def blacklist(root: Folder, lists: Sequence[UrlList], settings: BlacklistSettings, runner: Runner) -> Manifest:
    """Drop URLs by domain, extension, length, form and repetition; write the rest in their order.

    Raises:
        UserError: a domain list cannot be read, or no URL is left; the message counts the reasons.
    """
    domains = read_domain_lists(settings.domain_lists)
    names = blocked_names() if settings.block_names else frozenset()
    inputs = {
        "lists": digest([[item.source, item.sha256] for item in lists]),
        "domains": digest(sorted(domains.items())),
        "names": digest(sorted(names)),
    }
    parameters = settings.model_dump(mode="json", exclude={"domain_lists"})  # by their content, not by their place
    step = Step(root, "blacklist", version=1, parameters=parameters, inputs=inputs, folder="urls", packages=("tld",))
    if done := runner.finished(step):
        return done
    rules = Rules(names, EXTENSIONS if settings.block_extensions else (), domains, settings.min_length)
    # One batch: a repeated URL is found only by looking at all of them, and a million take seconds.
    outcomes = runner.batches(step, "all", [None], _all, lists, rules, settings.shard_rows, where="thread")
    total = Outcome.total(outcomes)
    if not total.kept:
        counts = ", ".join(f"{reason} {count}" for reason, count in total.reasons.items())
        raise UserError(
            f"every one of the {total.seen} URLs was rejected ({counts}); see {step.folder.url}/rejected, "
            "then mend the list or the [blacklist] settings"
        )
    return step.commit(total)


def _all(folder: Folder, name: str, item: None, lists: Sequence[UrlList], rules: Rules, shard_rows: int) -> Outcome:
    outcomes: list[Outcome] = []
    kept: list[dict[str, str]] = []
    rejected: list[dict[str, str]] = []

    def flush() -> None:
        outcomes.append(commit_rows(folder, f"part-{len(outcomes):05d}.parquet", kept, rejected, URLS))
        kept.clear()
        rejected.clear()

    for row, verdict in classify_all(lists, rules):
        if verdict is None:
            if len(kept) == shard_rows:
                flush()
            kept.append(row)
        else:
            rejected.append(rejected_row(row, *verdict))
    flush()
    return Outcome.total(outcomes)


def classify_all(lists: Sequence[UrlList], rules: Rules) -> Iterator[tuple[dict[str, str], tuple[str, str] | None]]:
    """Each URL as a row, with None where it is kept and (reason, detail) where it is not; in order."""
    seen: set[bytes] = set()
    for item in lists:
        for url in item.urls:
            yield {"url": url, "source": item.source}, classify(url, rules, seen)


def classify(url: str, rules: Rules, seen: set[bytes]) -> tuple[str, str] | None:
    """Why a URL is dropped, the first rule that hits: domain, list, extension, length, form, repetition.

    Args:
        url: one line of a list.
        rules: what is blocked.
        seen: keys of the URLs before; grows by each URL that is kept (16 bytes each).

    Returns:
        (reason, detail), or None where the URL is kept.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError as error:
        parts, host, fault = None, "", str(error)
    else:
        fault = ""
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode()
        except idna.IDNAError as error:
            host, fault = "", f"host name: {error}"
    if parts is not None and host:
        labels = host.split(".")
        if not rules.names.isdisjoint(labels) and (name := site_name(host)) in rules.names:
            return "blacklisted_domain", name
        if rules.listed and (domain := listed_domain(host, rules.listed)):
            return "listed_domain", f"{domain} ({rules.listed[domain]})"
        if rules.extensions and parts.path.lower().endswith(rules.extensions):
            return "forbidden_extension", parts.path.rpartition(".")[2].lower()
    if len(url) < rules.min_length:
        return "too_short", f"{len(url)} characters, at least {rules.min_length} expected"
    fault = fault or find_fault(url, parts, host)
    if fault or parts is None:
        return "malformed", fault
    key = hashlib.blake2b(normalise(parts, host).encode(), digest_size=16).digest()
    if key in seen:
        return "duplicate", ""
    seen.add(key)
    return None


def find_fault(url: str, parts: SplitResult | None, host: str) -> str:
    """What is wrong with the form of a URL; empty where nothing is."""
    if parts is None or parts.scheme not in PORTS:
        return f"scheme {parts.scheme[:20]!r}, http or https expected" if parts and parts.scheme else "no http://"
    if not host:
        return "no host"
    if FORBIDDEN.search(url):
        return "control or undecodable characters"
    try:
        if parts.port == 0:
            return "port 0"
    except ValueError:
        return "port is no number up to 65535"
    if IP_LIKE.fullmatch(host) or ":" in host:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return "a number, but no IP address, as host"
    elif len(host) > 253 or not HOST.fullmatch(host):
        return "not a full host name"
    return ""


def normalise(parts: SplitResult, host: str) -> str:
    """The form under which two URLs count as the same: host and scheme in lower case, no default port, no fragment,
    no user name, `/` for an empty path."""
    port = f":{parts.port}" if parts.port not in (None, PORTS[parts.scheme]) else ""
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}{port}{parts.path or '/'}{query}"


def site_name(host: str) -> str:
    """The registered domain without its suffix: `google` of `maps.google.co.uk`.

    Suffixes are ICANN's, not the private ones (so `blogspot` of `me.blogspot.com`); under a suffix that is not known
    the last label is taken for it.
    """
    found = get_tld(f"http://{host}", as_object=True, fail_silently=True, search_private=False)
    if found is not None and not isinstance(found, str):
        return found.domain
    labels = host.split(".")
    return labels[-2] if len(labels) > 1 and not IP_LIKE.fullmatch(host) else ""


def listed_domain(host: str, listed: Mapping[str, str]) -> str:
    """The longest listed domain that the host is, or lies under; empty where none is."""
    while host:
        if host in listed:
            return host
        host = host.partition(".")[2]
    return ""


@functools.cache
def blocked_names() -> frozenset[str]:
    """The built-in site names."""
    text = files("tasks").joinpath("data/blocked_names.txt").read_text("utf-8")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def read_domain_lists(places: Sequence[str]) -> dict[str, str]:
    """Domains of the user's lists -> category (the file's name; the folder's where the file is called `domains`).

    Raises:
        UserError: a list cannot be read or is empty.
    """
    domains: dict[str, str] = {}
    for place in places:
        fs, path = fsspec.core.url_to_fs(place)
        names = sorted(fs.find(path)) if fs.isdir(path) else [path]
        names = [n for n in names if n == path or n.endswith(".txt") or PurePosixPath(n).name == "domains"]
        before = len(domains)
        for name in names:
            category = PurePosixPath(name).parent.name if name.endswith("/domains") else PurePosixPath(name).stem
            for line in read_any(fs.unstrip_protocol(name)).decode("utf-8-sig", errors="replace").split("\n"):
                domain = line.strip().lower().strip(".")
                if domain and not domain.startswith("#"):
                    domains.setdefault(domain, category)
        if len(domains) == before and not names:
            raise UserError(f"no domain list in {place}; expected a file, <category>.txt or <category>/domains")
    return domains
