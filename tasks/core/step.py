"""The step contract: fingerprint, manifest, atomic commit, skip when done.

A step reads manifests and writes one. `fingerprint = hash(step, version, parameters, inputs, versions of packages)`;
a step is done if its manifest has this fingerprint and its outputs exist. Work is split into batches that commit
independently, so that a killed run repeats at most the batches in flight. Manifests hold nothing that depends on the
clock, the machine or the number of workers: timings go to `timings.jsonl` beside the step folders.

On disk, under the output URL:

    clean/part-00000.parquet            an output
    clean/rejected/part-00000.parquet   the rows that this batch dropped, with their reasons
    clean/_batches/part-00000.json      record of the committed batch (fingerprint, outputs, counts)
    clean/_manifest.json                written last; readers ignore files that it does not name

A step whose output folder is meant for publication (`runs/<name>/model/`) keeps its batch records and its manifest in a
folder beside it (`runs/<name>/merge/`).
"""

import contextlib
import hashlib
import importlib.metadata
import json
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from gpt2train.errors import RunError
from gpt2train.io.files import read_json_lines
from gpt2train.settings import Settings
from tasks.core.reject_limits import LimitSettings, check_reject_rate
from tasks.core.storage import TEMPORARY, FileRecord, Folder

MANIFEST = "_manifest.json"
SWEEP = "sweep"  # name of the batch record that marks a commit with stale files still to be removed
TIMINGS = "timings.jsonl"


class Outcome(Settings):
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
        reasons: Counter[str] = Counter()
        facts: Counter[str] = Counter()
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


class Manifest(Settings):
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
    folder: str
    """Folder under the output URL that holds the files."""
    parameters: dict[str, Any]
    """The settings of this step that its outputs depend on."""
    inputs: dict[str, str]
    """Name of each input -> its identity (fingerprint:content)."""
    outcome: Outcome
    """Files and counts."""
    versions: dict[str, str]
    """Versions of the libraries that the outputs depend on; part of the fingerprint."""

    @property
    def identity(self) -> str:
        """Identity that goes into the fingerprints of later steps: `fingerprint:content`."""
        return f"{self.fingerprint}:{self.content}"

    @property
    def outputs(self) -> tuple[FileRecord, ...]:
        """The files for the next step, in order."""
        return self.outcome.outputs

    def output(self, name: str) -> FileRecord:
        """Return the output file with this name.

        Raises:
            KeyError: the step has no such output.
        """
        for record in self.outputs:
            if record.name == name:
                return record
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


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    r"""Return installed versions by package name, sorted; `none` for a distribution that is not installed.

    Two names are not distributions: `unicodedata` is the version of Python's Unicode tables (`\w`, NFKC, casefold),
    `libxml2` is the version of the parser that lxml was built with.
    """
    return {package: _version(package) for package in sorted(packages)}


def _version(package: str) -> str:
    if package == "unicodedata":
        return unicodedata.unidata_version
    if package == "libxml2":
        from lxml import etree

        return ".".join(map(str, etree.LIBXML_VERSION))
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


class Step:
    """One step under one output URL: its fingerprint, its committed batches and its manifest.

    Args:
        root: Output URL.
        name: Name of the step.
        version: Version of the step's output. Raise it when a code change alters the output.
        parameters: Settings that the outputs depend on, and no others (not the number of workers).
        inputs: Manifests of earlier steps by name, or strings that identify other inputs (the hash of a file).
        folder: Folder under the root; default: the step's name.
        records: Folder under the root for the manifest and the batch records; default: `folder`.
        verify: Also compare the hashes of finished outputs, not only their names and sizes.
        packages: Names of the libraries that the outputs depend on, as `versions_of` takes them. Their versions are
            part of the fingerprint and are recorded in the manifest.
    """

    def __init__(
        self,
        root: Folder,
        name: str,
        *,
        version: int,
        parameters: Settings | Mapping[str, Any],
        inputs: Mapping[str, "Manifest | str"],
        folder: str | None = None,
        records: str | None = None,
        verify: bool = False,
        packages: Sequence[str] = (),
    ) -> None:
        self.root, self.name, self.version, self.verify = root, name, version, verify
        plain = parameters.model_dump(mode="json") if isinstance(parameters, Settings) else dict(parameters)
        self.parameters: dict[str, Any] = plain
        self.inputs = {key: item.identity if isinstance(item, Manifest) else item for key, item in inputs.items()}
        self.versions = versions_of(packages)
        self.fingerprint = fingerprint(name, version, self.parameters, self.inputs, self.versions)
        self.folder_name = folder or name
        self.folder = root / self.folder_name
        self.records = root / (records or self.folder_name)
        self.limits: LimitSettings | None = None  # set by the runner
        self._started, self._cpu = time.monotonic(), 0.0

    def finished(self) -> Manifest | None:
        """Return the manifest if a step with this fingerprint is done and its files exist, else None."""
        manifest = read_manifest(self.records)
        if manifest is None or manifest.fingerprint != self.fingerprint:
            return None
        return manifest if self._intact(manifest.outcome, self.folder.sizes()) else None

    def check_versions(self) -> None:
        """Check that this process, possibly a worker on another machine, has the library versions of the fingerprint.

        Raises:
            RunError: A library has another version here.
        """
        here = versions_of(self.versions)
        for package, wanted in self.versions.items():
            if here[package] != wanted:
                raise RunError(
                    f"{self.name}: a worker has {package} {here[package]}, the flow has {wanted}, and the outputs "
                    "depend on it; install the same packages on every machine"
                )

    def begin(self) -> None:
        """Prepare the folder: remove an outdated manifest before any of its files is replaced."""
        self.records.remove(MANIFEST)
        self._started, self._cpu = time.monotonic(), cpu_seconds()

    def batch(self, batch: str) -> Outcome | None:
        """Return the outcome that an earlier, unfinished run with this fingerprint committed for a batch, else None."""
        try:
            outcome = self._committed(self.records.read_bytes(f"_batches/{batch}.json"))
        except FileNotFoundError:
            return None
        return outcome if outcome is not None and self._intact(outcome) else None

    def batches(self, names: Sequence[str]) -> dict[str, Outcome]:
        """Return the outcomes of those batches that are committed, by name; as `batch`, with one listing for all."""
        sizes = self.folder.sizes()
        listed = sizes if self.records.url == self.folder.url else self.records.sizes()
        records = [name for name in names if f"_batches/{name}.json" in listed]
        texts = self.records.read_all([f"_batches/{name}.json" for name in records])
        found = {name: self._committed(texts[f"_batches/{name}.json"]) for name in records}
        return {name: outcome for name, outcome in found.items() if outcome and self._intact(outcome, sizes)}

    def _committed(self, text: bytes) -> Outcome | None:
        try:
            record = json.loads(text)
            return Outcome.model_validate(record["outcome"]) if record["fingerprint"] == self.fingerprint else None
        except (ValueError, KeyError, TypeError):
            return None  # another format: repeat the batch

    def commit_batch(self, batch: str, outcome: Outcome) -> None:
        """Write the record of a batch whose files are already written."""
        record = {"fingerprint": self.fingerprint, "outcome": outcome.model_dump(mode="json")}
        self.records.write_bytes(f"_batches/{batch}.json", canonical(record) + b"\n")

    def commit(self, outcome: Outcome, content: str | None = None, sweep: bool = True) -> Manifest:
        """Write the manifest, then remove the files that it does not name.

        This order makes an interrupted commit safe: it leaves the earlier manifest with all its files, or the new one
        with some superfluous files.

        Args:
            outcome: Files and counts of the whole step.
            content: Identity of the outputs if their bytes depend on the clock (fetch times); default: the hash of
                the files' names and hashes.
            sweep: Set to False for a folder that also holds files of others (a training run's logs and curves).

        Raises:
            RunError: The step rejected more rows than its limit allows.
        """
        if self.limits is not None:
            check_reject_rate(self.limits, self.name, self.folder.url, outcome.seen, outcome.reasons)
        manifest = Manifest(
            step=self.name,
            version=self.version,
            fingerprint=self.fingerprint,
            content=content or digest([[record.name, record.sha256] for record in outcome.outputs]),
            folder=self.folder_name,
            parameters=self.parameters,
            inputs=self.inputs,
            outcome=outcome,
            versions=self.versions,
        )
        stale = self._stale(outcome, self.folder.files()) if sweep else []
        if stale:  # if the run is killed after the manifest, the next run finds this record and sweeps
            self.commit_batch(SWEEP, Outcome())
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
        self.records.write_bytes(MANIFEST, text.encode() + b"\n")
        self.folder.remove(*stale)  # not earlier: an earlier manifest may name these files until now
        self.remove_batch_records()
        elapsed, cpu = time.monotonic() - self._started, max(0.0, cpu_seconds() - self._cpu)
        append_timing(self.root, self.name, elapsed, cpu, outcome.seen)
        return manifest

    def remove_batch_records(self) -> None:
        """Remove the records of committed batches, since the step is finished or its batches must be repeated."""
        self.records.remove(*(f"_batches/{name}" for name in (self.records / "_batches").files()))

    def complete_commit(self, manifest: Manifest) -> None:
        """Finish the sweep of a run that was killed after it had written its manifest.

        Records with another fingerprint (of an unfinished retry) stay, and so do the files that they name.
        """
        found = [f"_batches/{name}" for name in (self.records / "_batches").files() if TEMPORARY not in name]
        pattern = canonical({"fingerprint": self.fingerprint}).strip(b"{}")
        texts = self.records.read_all(found)
        own = [name for name in found if pattern in texts[name]]
        if not own:
            return
        named = {record.name for record in manifest.outcome.files}
        kept: set[str] = set()
        for name in sorted(set(found) - set(own)):
            files = _files_of(texts[name])
            if files <= named:
                own.append(name)
            kept |= files
        if f"_batches/{SWEEP}.json" in own:
            stale = self._stale(manifest.outcome, self.folder.files())
            self.folder.remove(*(name for name in stale if name not in kept))
        self.records.remove(*own)

    def _stale(self, outcome: Outcome, found: Iterable[str]) -> list[str]:
        """Return the files in a finished step's folder that its outcome does not name.

        Names that begin with `_` are records of the step itself (manifest, batches, paths of its inputs) and are kept.
        If the records are in a folder of their own, such names come from an earlier layout and are stale.
        """
        named = {record.name for record in outcome.files}
        separate = self.records.url != self.folder.url
        own = {name for name in found if name.startswith("_") and TEMPORARY not in name and not separate}
        return [name for name in found if name not in named and name not in own]

    def _intact(self, outcome: Outcome, sizes: Mapping[str, int] | None = None) -> bool:
        """Return True if every file that the outcome names exists with its size (and hash, with `verify`)."""
        for record in outcome.files:
            size = self.folder.size(record.name) if sizes is None else sizes.get(record.name)
            if size != record.bytes:
                return False
            if self.verify and self.folder.record(record.name).sha256 != record.sha256:
                return False
        return True


def _files_of(record: bytes) -> set[str]:
    """Return the names of the files in a batch record; empty for a record in another format."""
    try:
        return {file.name for file in Outcome.model_validate(json.loads(record)["outcome"]).files}
    except (ValueError, KeyError, TypeError):
        return set()


def read_manifest(folder: Folder) -> Manifest | None:
    """Return the manifest in a step's folder; None if there is none or it has an older format."""
    try:
        return Manifest.model_validate_json(folder.read_bytes(MANIFEST))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def need_manifest(folder: Folder) -> Manifest:
    """Return the manifest of a step that must be finished.

    Raises:
        RunError: The folder has no readable manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise RunError(f"{folder.url} holds no finished step ({MANIFEST} is missing or unreadable); run it first")
    return manifest


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants so far.

    Workers that have ended count if their parent waited for them. Workers on other machines do not count.
    """
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def append_timing(root: Folder, step: str, seconds: float, cpu: float, rows: int) -> None:
    """Append a step's timing to `timings.jsonl`, apart from the manifests, whose bytes must not depend on the clock."""
    try:
        before = root.read_bytes(TIMINGS)
    except FileNotFoundError:
        before = b""
    line = {
        "step": step,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "rows": rows,
        "ended": round(time.time(), 1),
    }
    if before and not before.endswith(b"\n"):
        before += b"\n"  # terminate a truncated line, so that it does not damage the next one
    root.write_bytes(TIMINGS, before + json.dumps(line).encode() + b"\n")


def read_timings(root: Folder) -> dict[str, dict[str, Any]]:
    """Return the last timing of each step, by name."""
    try:
        rows, _ = read_json_lines(root.read_bytes(TIMINGS))
    except FileNotFoundError:
        return {}
    return {row["step"]: row for row in rows if isinstance(row.get("step"), str)}
