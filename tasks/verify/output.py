"""Output to verify: its manifests, and the inputs of each step found by their identities."""

import re
from dataclasses import dataclass, field

from gpt2train.store.manifest import merge_manifests
from gpt2train.store.output import Origins
from tasks.core.manifest import MANIFEST, Manifest, read_manifest
from tasks.core.storage import Folder

IDENTITY = re.compile(r"[0-9a-f]{32}:.+")  # of a step; other inputs are hashes of files
COPIES = "inputs/"  # files of another output, fetched for a training: `tasks/core/stage_inputs.py`
RUNS = ("runs/", "task/")  # steps that may read another output


class NotRedoneError(Exception):
    """Reason for which a step cannot be done again here; not a difference."""


@dataclass
class Output:
    """An output folder with all its manifests.

    Attributes:
        root: Output folder, local or in a store.
        manifests: Manifest of each finished step by the folder that holds it, in the order of the folders.
        unreadable: Folders with a manifest that cannot be read: damaged, or of another format.
        sizes: Size of each file below the root.
    """

    root: Folder
    manifests: dict[str, Manifest] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Folder) -> "Output":
        """Read every manifest of an output."""
        output = cls(root, sizes=root.sizes())
        for name in output.sizes:
            folder, _, file = name.rpartition("/")
            if file != MANIFEST or name.startswith(COPIES):
                continue
            if (manifest := read_manifest(root / folder if folder else root)) is None:
                output.unreadable.append(folder)
            else:
                output.manifests[folder] = manifest
        return output

    def find(self, identity: str) -> Manifest | None:
        """Return the step, or the merged steps, with this identity; None if the output has none."""
        for manifest in self.manifests.values():
            if manifest.identity == identity:
                return manifest
        parts = Origins(self.manifests.values()).behind(identity)
        return merge_manifests(parts) if len(parts) > 1 else None

    def input(self, manifest: Manifest, name: str) -> Manifest:
        """Return the manifest of an input of a step.

        Raises:
            NotRedoneError: The output does not have that step.
        """
        if (found := self.find(manifest.inputs.get(name, ""))) is None:
            raise NotRedoneError(f"its input {name!r} is not in this output")
        return found

    def input_if_any(self, manifest: Manifest, name: str) -> Manifest | None:
        """Return the manifest of an input that a step may have; None if it has none."""
        return self.input(manifest, name) if name in manifest.inputs else None
