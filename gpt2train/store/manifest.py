"""Record of a finished step: its files and counts, and the fingerprint of its work.

`fingerprint = hash(step, version, parameters, inputs, versions of packages)`. A manifest holds nothing that depends on
the clock, the machine or the number of workers.
"""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from gpt2train.errors import RunError
from gpt2train.extras import version_of
from gpt2train.settings import Record
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.inner_path import OptionalInnerPath

MANIFEST = "_manifest.json"


class Outcome(Record):
    """Files and counts of one batch or of a whole step. The outcomes of the batches add up to the step's."""

    outputs: tuple[FileRecord, ...] = ()
    """The files for the next step, in order."""
    rejected: tuple[FileRecord, ...] = ()
    """Parquet files of the dropped rows: the row, `reason`, `detail`."""
    audit: tuple[FileRecord, ...] = ()
    """Other files kept for inspection: ledgers, pairs, clusters, sidecars."""
    seen: int = 0
    """Input rows (URLs, pages, documents)."""
    kept: int = 0
    """Output rows."""
    reasons: dict[str, int] = {}
    """Rows dropped, by reason code."""
    facts: dict[str, int] = {}
    """Other counts that add up over batches (tokens, bytes, retries, …)."""

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """All files: outputs, rejected rows, audit files."""
        return (*self.outputs, *self.rejected, *self.audit)

    @classmethod
    def total(cls, outcomes: Iterable["Outcome"]) -> "Outcome":
        """Add up outcomes in the given order; reasons and facts are sorted by name."""
        items = list(outcomes)
        reasons, facts = Counter[str](), Counter[str]()
        for item in items:
            reasons.update(item.reasons)
            facts.update(item.facts)
        return cls(
            outputs=tuple(record for item in items for record in item.outputs),
            rejected=tuple(record for item in items for record in item.rejected),
            audit=tuple(record for item in items for record in item.audit),
            seen=sum(item.seen for item in items),
            kept=sum(item.kept for item in items),
            reasons=dict(sorted(reasons.items())),
            facts=dict(sorted(facts.items())),
        )


def output_names(outcomes: Iterable[Outcome]) -> list[str]:
    """Names of the files for the next step, in order."""
    return [record.name for outcome in outcomes for record in outcome.outputs]


class Manifest(Record):
    """Record of a finished step: its inputs, parameters and outputs."""

    step: str
    """Name of the step."""
    version: int
    """Raised by hand when the step's code changes what it writes."""
    fingerprint: str
    """Hash of step, version, parameters, inputs and library versions."""
    content: str
    """Hash of the output's content. For a step that reads the network, it can differ between runs with one
    fingerprint."""
    folder: OptionalInnerPath
    """Folder under the output URL that holds the files; empty if their names begin with it."""
    parameters: dict[str, Any]
    """The settings of this step that its outputs depend on."""
    inputs: dict[str, str]
    """Name of each input -> its identity (fingerprint:content)."""
    outcome: Outcome
    """Files and counts."""
    versions: dict[str, str]
    """Versions of the libraries that the outputs depend on; part of the fingerprint."""
    read: dict[str, str] = {}
    """Step that it read besides -> its identity, and repository of the hub -> the commit at which it was read: for the
    lineage. The fingerprint has what it took from them otherwise, such as files by their hashes."""

    @model_serializer(mode="wrap")
    def _without_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `read` if it is empty, so that the manifests of most steps are those of older releases."""
        values: dict[str, Any] = serialize(self)
        return values if self.read else {name: value for name, value in values.items() if name != "read"}

    @property
    def identity(self) -> str:
        """Identity that goes into the fingerprints of later steps: `fingerprint:content`."""
        return f"{self.fingerprint}:{self.content}"

    @property
    def outputs(self) -> tuple[FileRecord, ...]:
        """The files for the next step, in order."""
        return self.outcome.outputs

    def output(self, name: str) -> FileRecord:
        """Return the output file with this name; KeyError if there is none."""
        if found := next((record for record in self.outputs if record.name == name), None):
            return found
        raise KeyError(f"{self.step} has no output {name}")


def canonical(value: Any) -> bytes:
    """Serialize to canonical JSON (sorted keys, no spaces): equal values give equal bytes under any hash seed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """Return a stable hash (BLAKE2b, 128 bits, hex) of a JSON-serializable value."""
    return hashlib.blake2b(canonical(value), digest_size=16).hexdigest()


def fingerprint(
    step: str,
    version: int,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return the fingerprint of a step's work: equal fingerprints mean equal work."""
    work = {"step": step, "version": version, "parameters": parameters, "inputs": inputs}
    return digest(work | ({"versions": versions} if versions else {}))


FORKS = {"fasttext-predict": "fasttext-predict-v2"}  # from Python 3.14 on


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    r"""Return installed versions by package name, sorted; `none` for a distribution that is not installed.

    Two names are not distributions: `unicodedata` is the version of Python's Unicode tables (`\w`, NFKC, casefold),
    `libxml2` is the version of the parser that lxml was built with.
    """
    return {package: _version(package) for package in sorted(packages)}


def version_differences(made: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return the packages that differ, for a message: `ftfy 6.0 (here 6.3.1)`."""
    names = sorted(name for name in {*made, *here} if made.get(name) != here.get(name))
    return ", ".join(f"{name} {made.get(name, 'unknown')} (here {here.get(name, 'not used')})" for name in names)


def _version(package: str) -> str:
    if package == "unicodedata":
        return unicodedata.unidata_version
    if package == "libxml2":
        from lxml import etree

        return ".".join(map(str, etree.LIBXML_VERSION))
    return version_of(package) or version_of(FORKS.get(package, package)) or "none"


def read_manifest(folder: Folder, name: str = MANIFEST) -> Manifest | None:
    """Return the manifest in a step's folder; None if there is none or it has an older format.

    Raises:
        UserError: it names a file outside of its folder.
    """
    try:
        return Manifest.model_validate_json(folder.read_bytes(name), context={"place": folder.location(name)})
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def need_manifest(folder: Folder) -> Manifest:
    """Return the manifest of a step; RunError if it is not finished."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise RunError(f"{folder.url} holds no finished step ({MANIFEST} is missing or unreadable); run it first")
    return manifest


def merge_manifests(manifests: Sequence[Manifest]) -> Manifest:
    """Return a manifest with the outputs of several finished steps in their order; a single manifest is unchanged.

    Nothing is written: the files stay in the folders of their steps, which become part of the names.
    """
    if len(manifests) == 1:
        return manifests[0]
    outputs = tuple(
        record.model_copy(update={"name": f"{manifest.folder}/{record.name}"})
        for manifest in manifests
        for record in manifest.outputs
    )
    return Manifest(
        step="+".join(manifest.step for manifest in manifests),
        version=1,
        fingerprint=digest([manifest.fingerprint for manifest in manifests]),
        content=digest([manifest.content for manifest in manifests]),
        folder="",
        parameters={},
        inputs={manifest.step: manifest.identity for manifest in manifests},
        outcome=Outcome(outputs=outputs),
        versions={},
    )
