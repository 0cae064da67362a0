"""The step contract: fingerprint, manifest, atomic commit, skip when done.

A step reads manifests and writes one; it is done if its manifest has its fingerprint and its outputs exist. Work is
split into batches that commit independently, so that a killed run repeats at most the batches in flight.

On disk, under the output URL:

    clean/part-00000.parquet            an output
    clean/rejected/part-00000.parquet   the rows that this batch dropped, with their reasons
    clean/_batches/part-00000.json      record of the committed batch (fingerprint, outputs, counts)
    clean/_manifest.json                written last; readers ignore files that it does not name

A step whose output folder is meant for publication (`runs/<name>/model/`) keeps its batch records and its manifest in a
folder beside it (`runs/<name>/merge/`).
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gpt2train.errors import RunError, UserError
from gpt2train.settings import Record, Settings
from gpt2train.store.folder import TEMPORARY, Folder
from gpt2train.store.manifest import (
    MANIFEST,
    Manifest,
    Outcome,
    canonical,
    digest,
    fingerprint,
    read_manifest,
    version_differences,
    versions_of,
)
from tasks.core.reject_limits import LimitSettings, check_reject_rate
from tasks.core.row_reuse import PreviousRows, is_leftover, previous_rows, set_aside
from tasks.core.timings import append_timing, cpu_seconds, read_timings

BATCHES = "_batches"
Environment = Literal["redo", "refuse", "accept"]
BEGUN = "_begun"  # file of a step that has begun: what its folder holds is its own, and may be removed
SWEEP = "sweep"  # name of the batch record that marks a commit with stale files still to be removed


class BatchRecord(Record):
    """Record of a committed batch."""

    fingerprint: str  # fingerprint of its step
    outcome: Outcome  # files and counts of the batch
    versions: dict[str, str] = {}  # library versions of its step; empty in the records of older releases


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
        packages: Names of the libraries that the outputs depend on, as `versions_of` takes them. Their versions are
            part of the fingerprint and are recorded in the manifest.
        row_input: Name of the input whose rows the step maps one by one, each by itself. If it alone has changed, the
            batches may take unchanged rows from the earlier outputs (`previous_rows`).
        read: Manifests of other steps that it reads: for the lineage, not for the fingerprint.
        shared: Set to True for a folder that also holds files of others (a training run's logs), which stay.
        commits: Commits at which it reads repositories of the hub, by their addresses: as `read`, since a commit that
            changes none of the files that are read is no other work.
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
        packages: Sequence[str] = (),
        row_input: str | None = None,
        read: Sequence["Manifest"] = (),
        commits: Mapping[str, str] | None = None,
        shared: bool = False,
    ) -> None:
        self.root, self.name, self.version = root, name, version
        self.read = {manifest.step: manifest.identity for manifest in read} | dict(commits or {})
        plain = parameters.model_dump(mode="json") if isinstance(parameters, Settings) else dict(parameters)
        self.parameters: dict[str, Any] = plain
        self.inputs = {key: item.identity if isinstance(item, Manifest) else item for key, item in inputs.items()}
        self.versions = versions_of(packages)
        self.fingerprint = fingerprint(name, version, self.parameters, self.inputs, self.versions)
        self.folder_name = folder or name
        self.folder = root / self.folder_name
        self.records = root / (records or self.folder_name)
        self.row_input, self.shared = row_input, shared
        self.verify = False  # set by the runner, as are the limits
        self.limits: LimitSettings | None = None
        self.environment: Environment = "redo"
        self.notice: str | None = None  # of `finished`, on the packages that the outputs were made with
        self._started, self._cpu = time.monotonic(), 0.0

    def finished(self) -> Manifest | None:
        """Return the manifest if a step with this fingerprint is done and its files exist, else None.

        The outputs may have been made with other packages: `environment` says what becomes of them, and `notice` what
        was found. Those of a release that did not record the packages are accepted unless it is `refuse`.

        Raises:
            UserError: The outputs were made with other packages, and `environment` is `refuse`.
        """
        manifest = read_manifest(self.records)
        if manifest is None or not self._is_accepted(manifest.fingerprint, manifest.versions):
            return None
        return manifest if self._intact(manifest.outcome, self.folder.sizes()) else None

    def _is_accepted(self, found: str, versions: Mapping[str, str]) -> bool:
        """Return True if outputs with this fingerprint, made with these library versions, are those of the step."""
        self.notice = None
        if found == self.fingerprint:
            return True
        is_unknown = found == self._fingerprint_with({})
        if not is_unknown and found != self._fingerprint_with(versions):
            return False  # other settings or inputs
        made = f"made with {version_differences(versions, self.versions)}"
        if is_unknown:
            made = "made by a release that did not record its packages"
        if self.environment == "refuse":
            remedy = "install those packages, or set environment = 'redo' or 'accept'"
            raise UserError(f"{self.folder.url} was {made}, and environment is 'refuse'; {remedy}")
        keep = is_unknown or self.environment == "accept"
        self.notice = f"{self.name}: {made}; {'kept' if keep else 'running again'}"
        return keep

    def _fingerprint_with(self, versions: Mapping[str, str]) -> str:
        return fingerprint(self.name, self.version, self.parameters, self.inputs, versions)

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

    def has_files_of(self, manifest: Manifest) -> bool:
        """Return True if every file of a manifest of this folder exists as it says."""
        return self._intact(manifest.outcome, self.folder.sizes())

    def begin(self) -> None:
        """Prepare the folder: remove an outdated manifest before any of its files is replaced.

        Raises:
            UserError: The folder holds files, and none that a step writes: they are the user's, and would be removed.
        """
        if not self.shared:
            self.check_own()
            self.records.write_bytes(BEGUN, b"")
        if self.row_input is not None:
            set_aside(self)
        self.records.remove(MANIFEST)
        self.start_timing()

    def check_own(self) -> None:
        """Raise a UserError if the folder holds files of the user, such as texts/ of the working folder."""
        names = [] if self.shared else self.folder.files()
        known = any(name.startswith(("_", ".")) for name in names)
        if names and not known and self.name not in read_timings(self.root):  # those list each step that was finished
            raise UserError(
                f"{self.folder.url} holds files of yours, such as {names[0]}, and the step {self.name} writes there; "
                "give another --output, or move them"
            )

    def start_timing(self) -> None:
        """Count the time of the step from here."""
        self._started, self._cpu = time.monotonic(), cpu_seconds()

    def maps_alike(self, earlier: Manifest) -> bool:
        """Return True if the rows of an earlier output were made as this step makes them, maybe from another input."""

        def others(inputs: Mapping[str, str]) -> dict[str, str]:
            return {name: identity for name, identity in inputs.items() if name != self.row_input}

        made = (earlier.step, earlier.version, earlier.parameters, earlier.versions, others(earlier.inputs))
        return made == (self.name, self.version, self.parameters, self.versions, others(self.inputs))

    def previous_rows(self) -> PreviousRows | None:
        """Return the earlier outputs from which batches may take rows, after `begin`; None if there are none."""
        return previous_rows(self) if self.row_input is not None else None

    def batch(self, batch: str) -> Outcome | None:
        """Return the outcome that an earlier, unfinished run with this fingerprint committed for a batch, else None."""
        try:
            outcome = self._committed(_record_name(batch), self.records.read_bytes(_record_name(batch)))
        except FileNotFoundError:
            return None
        return outcome if outcome and self._intact(outcome) else None

    def batches(self, names: Sequence[str]) -> dict[str, Outcome]:
        """Return the outcomes of those batches that are committed, by name; as `batch`, with one listing for all."""
        sizes = self.folder.sizes()
        listed = sizes if self.records.url == self.folder.url else self.records.sizes()
        records = {_record_name(name): name for name in names if _record_name(name) in listed}
        texts = self.records.read_all(list(records))
        found = {records[file]: self._committed(file, text) for file, text in texts.items()}
        return {name: outcome for name, outcome in found.items() if outcome and self._intact(outcome, sizes)}

    def _committed(self, name: str, text: bytes) -> Outcome | None:
        record = _read_record(text, self.records.location(name))
        if record is None or record.fingerprint == self.fingerprint:
            return record.outcome if record else None
        # Batches of two environments never make one step: the manifest could not say what made its files.
        if self.environment == "refuse" and record.versions:
            self._is_accepted(record.fingerprint, record.versions)
        return None

    def commit_batch(self, batch: str, outcome: Outcome) -> None:
        """Write the record of a batch whose files are already written."""
        record = BatchRecord(fingerprint=self.fingerprint, outcome=outcome, versions=self.versions)
        self.records.write_bytes(_record_name(batch), canonical(record.model_dump(mode="json")) + b"\n")

    def commit(self, outcome: Outcome, content: str | None = None) -> Manifest:
        """Write the manifest, then remove the files that it does not name.

        This order makes an interrupted commit safe: it leaves the earlier manifest with all its files, or the new one
        with some superfluous files.

        Args:
            outcome: Files and counts of the whole step.
            content: Identity of the outputs if their bytes depend on the clock (fetch times); default: the hash of
                the files' names and hashes.

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
            read=self.read,
        )
        stale = [] if self.shared else self._stale(outcome)
        if stale:  # if the run is killed after the manifest, the next run finds this record and sweeps
            self.commit_batch(SWEEP, Outcome())
        text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False)
        self.records.write_bytes(MANIFEST, text.encode() + b"\n")
        self.folder.remove(*stale)  # not earlier: an earlier manifest may name these files until now
        self.records.remove(BEGUN)
        self.remove_batch_records()
        elapsed, cpu = time.monotonic() - self._started, max(0.0, cpu_seconds() - self._cpu)
        append_timing(self.root, self.name, elapsed, cpu, outcome.seen)
        return manifest

    def remove_batch_records(self) -> None:
        """Remove the records of committed batches, since the step is finished or its batches must be repeated."""
        self.records.remove(*self._record_files())

    def reasons_of(self, nothing_kept: Outcome) -> str:
        """Return the reasons of an outcome without kept rows for a message; the next run repeats its batches."""
        self.remove_batch_records()
        return ", ".join(f"{reason} {count}" for reason, count in nothing_kept.reasons.items())

    def complete_commit(self, manifest: Manifest) -> None:
        """Finish the sweep of a run that was killed after it had written its manifest.

        Records with another fingerprint (of an unfinished retry) stay, and so do the files that they name.
        """
        self.records.remove(BEGUN)
        texts = self.records.read_all([name for name in self._record_files() if TEMPORARY not in name])
        records = {name: _read_record(text, self.records.location(name)) for name, text in texts.items()}
        own = {name for name, record in records.items() if record and record.fingerprint == self.fingerprint}
        if not own:
            return
        others = {name: _names(record.outcome) if record else set() for name, record in records.items()}
        others = {name: files for name, files in others.items() if name not in own}
        if _record_name(SWEEP) in own:
            kept = set[str]().union(*others.values())
            self.folder.remove(*(name for name in self._stale(manifest.outcome) if name not in kept))
        named = _names(manifest.outcome)
        self.records.remove(*own, *(name for name, files in others.items() if files <= named))

    def _record_files(self) -> list[str]:
        return [f"{BATCHES}/{name}" for name in (self.records / BATCHES).files()]

    def _stale(self, outcome: Outcome) -> list[str]:
        """Return the files in a finished step's folder that its outcome does not name.

        Names that begin with `_` are records of the step itself (manifest, batches, paths of its inputs) and are kept.
        If the records are in a folder of their own, such names come from an earlier layout and are stale.
        """
        named = _names(outcome)
        separate = self.records.url != self.folder.url
        return [
            name
            for name in self.folder.files()
            if name not in named
            and (separate or not name.startswith("_") or TEMPORARY in name or is_leftover(name, named))
        ]

    def _intact(self, outcome: Outcome, sizes: Mapping[str, int] | None = None) -> bool:
        """Return True if every file that the outcome names exists with its size (and hash, with `verify`)."""
        size_of = self.folder.size if sizes is None else sizes.get
        return all(
            size_of(record.name) == record.bytes
            and (not self.verify or self.folder.record(record.name).sha256 == record.sha256)
            for record in outcome.files
        )


def _record_name(batch: str) -> str:
    return f"{BATCHES}/{batch}.json"


def _read_record(text: bytes, place: str) -> BatchRecord | None:
    try:
        return BatchRecord.model_validate_json(text, context={"place": place})
    except ValueError:
        return None  # another format: the batch is repeated


def _names(outcome: Outcome) -> set[str]:
    return {record.name for record in outcome.files}
