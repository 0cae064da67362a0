"""A finished output: its steps in order, what each of them was made of, and their files.

An input is known by the identity of a step, by that of several steps in one (`merge_manifests`), or by the hash of a
file that a step has written (the drawn cloze set).
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpt2train.errors import UserError
from gpt2train.store.folder import FileRecord, Folder
from gpt2train.store.manifest import MANIFEST, Manifest, merge_manifests, read_manifest
from gpt2train.store.removal import PENDING, removal_message

if TYPE_CHECKING:
    from gpt2train.store.rows import Place

IDENTITY = re.compile(r"[0-9a-f]{32}:.+")  # of a step; other inputs are hashes of files
COPIES = "inputs/"  # files of another output, fetched for a training: `tasks/core/stage_inputs.py`
PLUGINS = "data_steps/"  # steps of plug-ins: `tasks/data_steps/step.py`
# Steps whose outputs become one input, in order.
MERGED = (("download", "commoncrawl", "warcs", "webpages"), ("extract", "texts"))
# Order of the steps that come from folders without a link between them (outputs of older runs).
USUAL = (
    *("urls", "pages", "warcs", "documents", "clean", "boilerplate", "decontaminated"),
    *("dedup", "substrings", "shuffled", "evalset", "tokens"),
)


class MissingInputError(Exception):
    """Input of a step that its output folder does not have, such as one of another output."""


class Origins:
    """Finished steps, found by what the manifests of later steps say of their inputs."""

    def __init__(self, manifests: Iterable[Manifest] = ()) -> None:
        self._by_identity: dict[str, Manifest] = {}
        self._by_step: dict[str, Manifest] = {}
        self._by_file: dict[str, Manifest] = {}
        for manifest in manifests:
            self.add(manifest)

    def add(self, manifest: Manifest) -> None:
        """Add a step; of two with one name, inputs that are found by it mean the last."""
        self._by_identity[manifest.identity] = self._by_step[manifest.step] = manifest
        self._by_file |= {record.sha256: manifest for record in manifest.outputs}

    def behind(self, identity: str) -> tuple[Manifest, ...]:
        """Return the steps behind an input; none if it is of no step, or of one that is not known."""
        if found := self._by_identity.get(identity) or self._by_file.get(identity.partition(" ")[0]):
            return (found,)
        for names in MERGED:
            steps = [self._by_step[name] for name in names if name in self._by_step]
            for count in range(2, len(steps) + 1):
                for some in itertools.combinations(steps, count):
                    if merge_manifests(some).identity == identity:
                        return some
        return ()

    def of(self, made: Manifest) -> dict[str, tuple[Manifest, ...]]:
        """Return the steps behind each input of a step by the input's name, without inputs that are of no known step.

        A step in `read` that has run again since is found by its name: its lists were the same.
        """
        found = {name: self.behind(identity) for name, identity in made.inputs.items()}
        for name, identity in made.read.items():
            by_name = self._by_step.get(name)
            found[name] = self.behind(identity) or ((by_name,) if by_name else ())
        return {name: steps for name, steps in found.items() if steps}


class Stage(NamedTuple):
    """Result of one step for a document: `other` of a step whose rows are no documents or pages."""

    result: Literal["kept", "rejected", "absent", "other"]
    place: "Place | None" = None
    row: dict[str, Any] | None = None


@dataclass(frozen=True)
class FinishedStep:
    """Finished step with its files."""

    folder: Folder
    manifest: Manifest

    @property
    def name(self) -> str:
        """Folder of the step."""
        return self.manifest.folder

    @property
    def outputs(self) -> list[str]:
        """Parquet files of its output."""
        return _parquet(self.manifest.outcome.outputs)

    @property
    def rejected(self) -> list[str]:
        """Parquet files of its rejected rows."""
        return _parquet(self.manifest.outcome.rejected)

    def audit(self, *kinds: str) -> list[str]:
        """Parquet files of its audit in some of its folders."""
        return [name for name in _parquet(self.manifest.outcome.audit) if name.partition("/")[0] in kinds]

    def columns(self) -> list[str]:
        """Columns of its output; empty if it has no Parquet files, or they are gone."""
        from gpt2train.store.rows import opened  # pyarrow, as below

        for name in self.outputs[:1]:
            with opened(self.folder, name) as file:
                return list(file.schema_arrow.names)
        return []

    def stage(
        self,
        columns: Sequence[str],
        identity: str,
        url: str,
        hint: str = "",
        end: float = float("inf"),
        partial: bool = False,
    ) -> Stage:
        """Find a document by its id in the files of this step, by its URL in those of one before the extraction.

        Args:
            columns: columns of its output.
            identity: id of the document; empty if unknown.
            url: URL of its page; empty if unknown.
            hint: name of a file that is read first: most steps name each shard like the one that they read.
            end: time of the monotonic clock after which no further file is searched.
            partial: pass over files that are gone.

        Raises:
            RunError: a file is missing or damaged.
        """
        from gpt2train.store.rows import find_row, read_row  # pyarrow, which cards do not need

        def find(names: Sequence[str], key: str, value: str) -> "Place | None":
            return find_row(self.folder, names, key, value, hint, end, partial) if value else None

        key, value = ("id", identity) if "id" in columns else ("url", url)
        if key not in columns:
            return Stage("other")
        if place := find(self.outputs, key, value):
            return Stage("kept", place, read_row(self.folder, place))
        for key, value in (("id", identity), ("url", url)):
            if place := find(self.rejected, key, value):
                row = read_row(self.folder, place)
                if key == "url" and identity and row["id"]:
                    break  # another text of the same address
                return Stage("rejected", place, row)
        return Stage("absent")


class Output:
    """Output folder of a flow, local or in a store, read only.

    `steps` are those of the data flow. `manifests` has each finished step of any depth, such as trainings, by folder.
    """

    def __init__(self, root: Folder) -> None:
        self.root = root

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each file below the root, from one listing."""
        return self.root.sizes()

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """Manifest of each finished step by the folder that holds it, in the order of the folders."""
        return self._read(self._manifest_folders)

    @property
    def unreadable(self) -> list[str]:
        """Folders with a manifest that cannot be read: damaged, or of another format."""
        return [folder for folder in self._manifest_folders if folder not in self.manifests]

    @property
    def _manifest_folders(self) -> list[str]:
        names = [name.rpartition("/") for name in self.sizes if not name.startswith(COPIES)]
        return [folder for folder, _, file in names if file == MANIFEST]

    @cached_property
    def steps(self) -> list[FinishedStep]:
        """Finished data steps, each after those whose output it read."""
        folders = [*self._folders(""), *self._folders(PLUGINS)]
        found = [FinishedStep(self.root / name, made) for name, made in self._read(folders).items()]
        remaining = sorted(found, key=lambda step: (USUAL.index(step.name) if step.name in USUAL else 99, step.name))
        self._origins = Origins(step.manifest for step in found)
        before = {step.name: self._before(step) for step in found}
        ordered: list[FinishedStep] = []
        while remaining:
            done = {step.name for step in ordered}
            ready = next((step for step in remaining if before[step.name] <= done), remaining[0])
            remaining.remove(ready)
            ordered.append(ready)
        return ordered

    def chain(self, last: FinishedStep) -> list[FinishedStep]:
        """Return the steps that a step was made of, in their order, and itself."""
        by_name, pending, found = {step.name: step for step in self.steps}, [last.name], set[str]()
        while pending:
            found.add(name := pending.pop())
            pending += self._before(by_name[name]) - found
        return [step for step in self.steps if step.name in found]

    def find(self, identity: str) -> Manifest | None:
        """Return the step of `manifests`, or the merged steps, with this identity; None if there is none."""
        for manifest in self.manifests.values():
            if manifest.identity == identity:
                return manifest
        parts = Origins(self.manifests.values()).behind(identity)
        return merge_manifests(parts) if len(parts) > 1 else None

    def input(self, manifest: Manifest, name: str) -> Manifest:
        """Return the manifest of an input of a step; MissingInputError if the output does not have that step."""
        if (found := self.find(manifest.inputs.get(name, ""))) is None:
            raise MissingInputError(f"its input {name!r} is not in this output")
        return found

    def input_if_any(self, manifest: Manifest, name: str) -> Manifest | None:
        """Return the manifest of an input that a step may have; None if it has none."""
        return self.input(manifest, name) if name in manifest.inputs else None

    def check_documents(self) -> None:
        """Raise a UserError if no step has documents, or a removal of pages was interrupted."""
        check_no_removal(self.root)
        if not any(step.outputs for step in self.steps):
            raise UserError(f"{self.root.url} has no finished step with documents; give the output of a data flow")

    def _before(self, step: FinishedStep) -> set[str]:
        origins = self._origins.of(step.manifest).values()
        return {one.folder for found in origins for one in found} - {step.name}

    def _folders(self, below: str) -> list[str]:
        """List the folders with a manifest directly below one, a link to a folder too."""
        parent = self.root / below.rstrip("/") if below else self.root
        with parent.translate_errors():
            listed = parent.fs.ls(parent.path(), detail=True) if parent.fs.exists(parent.path()) else []
        names = sorted(str(one["name"]).rstrip("/").rpartition("/")[2] for one in listed if one["type"] != "file")
        return [f"{below}{name}" for name in names if parent.size(f"{name}/{MANIFEST}")]

    def _read(self, folders: Iterable[str]) -> dict[str, Manifest]:
        found = {folder: read_manifest(self.root / folder if folder else self.root) for folder in folders}
        return {folder: manifest for folder, manifest in found.items() if manifest is not None}


def check_no_removal(root: Folder) -> None:
    """Raise a UserError if a removal was interrupted, after which the files of steps do not fit together."""
    if root.size(PENDING) is not None:
        raise UserError(removal_message(root.url))


def _parquet(records: Sequence[FileRecord]) -> list[str]:
    return [record.name for record in records if record.name.endswith(".parquet")]
