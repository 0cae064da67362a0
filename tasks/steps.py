"""The step contract: fingerprint, manifest, atomic commit, skip when done.

A manifest goes in, a manifest comes out. `fingerprint = hash(step, version, parameters, inputs)`; a step whose
manifest carries this fingerprint and whose outputs are there is done. Work is cut into batches that commit on their
own, so that a killed run repeats at most the batches in flight. Manifests hold nothing that depends on the clock, the
machine or the number of workers: timings go to `timings.jsonl` beside the step folders.

On disk, under the output URL:

    clean/part-00000.parquet            an output
    clean/rejected/part-00000.parquet   the rows that this batch dropped, with their reasons
    clean/_batches/part-00000.json      what the batch committed (fingerprint, outputs, counts)
    clean/_manifest.json                written last; readers trust nothing that it does not name
"""

import contextlib
import hashlib
import importlib.metadata
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil

from gpt2train.errors import RunError
from gpt2train.settings import Settings
from tasks.limits import LimitSettings, judge
from tasks.storage import TEMPORARY, FileRecord, Folder

MANIFEST = "_manifest.json"
TIMINGS = "timings.jsonl"


class Outcome(Settings):
    """What one batch, or a whole step, did. Batches add up to the step."""

    outputs: tuple[FileRecord, ...] = ()
    """The files for the next step, in order."""
    rejected: tuple[FileRecord, ...] = ()
    """Parquet files of the dropped rows: the row, `reason`, `detail`."""
    audit: tuple[FileRecord, ...] = ()
    """Further files that are kept to be looked at: ledgers, pairs, clusters, sidecars."""
    seen: int = 0
    """Rows (URLs, pages, documents) that came in."""
    kept: int = 0
    """Rows that went on."""
    reasons: dict[str, int] = {}
    """Rows dropped, by reason code."""
    facts: dict[str, int] = {}
    """Further counts that add up over batches (tokens, bytes, retries, …)."""

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Every file that is named here."""
        return (*self.outputs, *self.rejected, *self.audit)

    @classmethod
    def total(cls, outcomes: Iterable["Outcome"]) -> "Outcome":
        """Add up outcomes in the given order; reasons and facts are sorted by name."""
        parts = list(outcomes)
        reasons: Counter[str] = Counter()
        facts: Counter[str] = Counter()
        for part in parts:
            reasons.update(part.reasons)
            facts.update(part.facts)
        return cls(
            outputs=tuple(record for part in parts for record in part.outputs),
            rejected=tuple(record for part in parts for record in part.rejected),
            audit=tuple(record for part in parts for record in part.audit),
            seen=sum(part.seen for part in parts),
            kept=sum(part.kept for part in parts),
            reasons=dict(sorted(reasons.items())),
            facts=dict(sorted(facts.items())),
        )


class Manifest(Settings):
    """What a finished step left, and from what."""

    step: str
    """Name of the step."""
    version: int
    """Raised by hand when the step's code changes what it writes."""
    fingerprint: str
    """Hash of step, version, parameters and inputs."""
    content: str
    """Hash of what the outputs hold; for a step that reads the network it can differ under one fingerprint."""
    folder: str
    """Folder under the output URL that holds the files."""
    parameters: dict[str, Any]
    """The settings of this step that its outputs depend on."""
    inputs: dict[str, str]
    """Name of each input -> its identity (fingerprint:content)."""
    outcome: Outcome
    """Files and counts."""
    versions: dict[str, str]
    """Versions of the libraries that shaped the outputs."""

    @property
    def identity(self) -> str:
        """What a later step's fingerprint takes of this one."""
        return f"{self.fingerprint}:{self.content}"

    @property
    def outputs(self) -> tuple[FileRecord, ...]:
        """The files for the next step, in order."""
        return self.outcome.outputs

    def output(self, name: str) -> FileRecord:
        """The output of this name.

        Raises:
            KeyError: there is none.
        """
        for record in self.outputs:
            if record.name == name:
                return record
        raise KeyError(f"{self.step} has no output {name}")


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values, equal bytes, whatever the hash seed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """Short stable hash (128 bits, hex) of a JSON-able value."""
    return hashlib.blake2b(canonical(value), digest_size=16).hexdigest()


def fingerprint(step: str, version: int, parameters: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """The identity of a piece of work: equal fingerprints mean equal work."""
    return digest({"step": step, "version": version, "parameters": parameters, "inputs": inputs})


class Step:
    """One step on one output URL: what it is, what of it is committed, how it commits the rest.

    Args:
        root: the output URL.
        name: name of the step.
        version: raise it when the code changes what is written.
        parameters: the settings that the outputs depend on, and no others (not the number of workers).
        inputs: manifests of the steps before, by name; or plain strings that identify other inputs (a file's hash).
        folder: folder under the root; the step's name where not given.
        verify: also compare the hashes of finished outputs, not only their names and sizes.
        packages: distributions whose versions the manifest records.
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
        verify: bool = False,
        packages: Sequence[str] = (),
    ) -> None:
        self.root, self.name, self.version, self.verify = root, name, version, verify
        plain = parameters.model_dump(mode="json") if isinstance(parameters, Settings) else dict(parameters)
        self.parameters: dict[str, Any] = plain
        self.inputs = {key: item.identity if isinstance(item, Manifest) else item for key, item in inputs.items()}
        self.fingerprint = fingerprint(name, version, self.parameters, self.inputs)
        self.folder_name = folder or name
        self.folder = root / self.folder_name
        self.packages = packages
        self.limits: LimitSettings | None = None  # the runner's
        self._started, self._cpu = time.monotonic(), 0.0

    def finished(self) -> Manifest | None:
        """The manifest, when this very work is done and its files are there; else None."""
        manifest = read_manifest(self.folder)
        if manifest is None or manifest.fingerprint != self.fingerprint:
            return None
        return manifest if self._intact(manifest.outcome, self.folder.sizes()) else None

    def begin(self) -> None:
        """Make the folder ready: a manifest of other work goes first, before any of its files is replaced."""
        self.folder.remove(MANIFEST)
        self._started, self._cpu = time.monotonic(), cpu_seconds()

    def batch(self, batch: str) -> Outcome | None:
        """What this batch committed in an earlier, unfinished run of the same work; else None."""
        try:
            outcome = self._committed(self.folder.read_bytes(f"_batches/{batch}.json"))
        except FileNotFoundError:
            return None
        return outcome if outcome is not None and self._intact(outcome) else None

    def batches(self, names: Sequence[str]) -> dict[str, Outcome]:
        """`batch` of many, by one listing: those that are committed."""
        sizes = self.folder.sizes()
        records = [name for name in names if f"_batches/{name}.json" in sizes]
        texts = self.folder.read_all([f"_batches/{name}.json" for name in records])
        found = {name: self._committed(texts[f"_batches/{name}.json"]) for name in records}
        return {name: outcome for name, outcome in found.items() if outcome and self._intact(outcome, sizes)}

    def _committed(self, text: bytes) -> Outcome | None:
        try:
            record = json.loads(text)
            return Outcome.model_validate(record["outcome"]) if record["fingerprint"] == self.fingerprint else None
        except (ValueError, KeyError):
            return None  # of another format: do the batch again

    def commit_batch(self, batch: str, outcome: Outcome) -> None:
        """Record a batch whose files are written."""
        record = {"fingerprint": self.fingerprint, "outcome": outcome.model_dump(mode="json")}
        self.folder.write_bytes(f"_batches/{batch}.json", canonical(record) + b"\n")

    def commit(self, outcome: Outcome, content: str | None = None, sweep: bool = True) -> Manifest:
        """Write the manifest, the last act of a step, and sweep files that it does not name.

        Args:
            outcome: the whole step's files and counts.
            content: identity of the outputs where their bytes hold the clock (fetch times); by default the hash of
                the files' names and hashes.
            sweep: False for a folder that holds more than this step's files (a training run's logs and curves).

        Raises:
            RunError: the step rejected more than its limit allows.
        """
        if self.limits is not None:
            judge(self.limits, self.name, self.folder.url, outcome.seen, outcome.reasons)
        manifest = Manifest(
            step=self.name,
            version=self.version,
            fingerprint=self.fingerprint,
            content=content or digest([[record.name, record.sha256] for record in outcome.outputs]),
            folder=self.folder_name,
            parameters=self.parameters,
            inputs=self.inputs,
            outcome=outcome,
            versions={package: importlib.metadata.version(package) for package in sorted(self.packages)},
        )
        named = {record.name for record in outcome.files}
        found = self.folder.files() if sweep else []
        # A name that begins with `_` is a note of the step itself: its manifest, its batches, where its inputs lie.
        notes = {name for name in found if name.startswith("_") and TEMPORARY not in name}
        self.folder.remove(*(name for name in found if name not in named and name not in notes))
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
        self.folder.write_bytes(MANIFEST, text.encode() + b"\n")
        self.forget_batches()
        took, worked = time.monotonic() - self._started, max(0.0, cpu_seconds() - self._cpu)
        append_timing(self.root, self.name, took, worked, outcome.seen)
        return manifest

    def forget_batches(self) -> None:
        """Remove the records of committed batches: the step is finished, or what they did is not to be built on."""
        self.folder.remove(*(f"_batches/{name}" for name in (self.folder / "_batches").files()))

    def forget_finished(self) -> None:
        """Remove the records that a run left which was killed after the manifest; those of other work here stay."""
        names = [f"_batches/{name}" for name in (self.folder / "_batches").files()]
        mark = canonical({"fingerprint": self.fingerprint}).strip(b"{}")
        self.folder.remove(*(name for name in names if mark in self.folder.read_bytes(name)))

    def _intact(self, outcome: Outcome, sizes: Mapping[str, int] | None = None) -> bool:
        """Whether every file that the outcome names is there, with its size (and hash, with `verify`)."""
        for record in outcome.files:
            size = self.folder.size(record.name) if sizes is None else sizes.get(record.name)
            if size != record.bytes:
                return False
            if self.verify and self.folder.record(record.name).sha256 != record.sha256:
                return False
        return True


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of a step's folder; None where there is none or it is of an older format."""
    try:
        return Manifest.model_validate_json(folder.read_bytes(MANIFEST))
    except (FileNotFoundError, ValueError):
        return None


def need_manifest(folder: Folder) -> Manifest:
    """The manifest of a step that must be finished.

    Raises:
        RunError: it is not.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise RunError(f"{folder.url} holds no finished step ({MANIFEST} is missing or unreadable); run it first")
    return manifest


def cpu_seconds() -> float:
    """CPU time that this process and all below it have taken so far; a worker that ended counts where it was waited
    for. What workers on other machines take is not in it."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def append_timing(root: Folder, step: str, seconds: float, cpu: float, rows: int) -> None:
    """Note how long a step took. Kept apart from the manifests, whose bytes must not depend on the clock."""
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
    root.write_bytes(TIMINGS, before + json.dumps(line).encode() + b"\n")


def read_timings(root: Folder) -> dict[str, dict[str, Any]]:
    """The last timing of each step."""
    try:
        lines = root.read_bytes(TIMINGS).splitlines()
    except FileNotFoundError:
        return {}
    return {record["step"]: record for record in map(json.loads, lines)}
