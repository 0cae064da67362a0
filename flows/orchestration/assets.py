"""Outputs of the steps as Prefect assets, with their lineage.

The key of an asset is the URL of the step's folder. What it was made from follows from its manifest, also across flows:
a training names the tokens of the data flow that it read. A step that was finished before materializes nothing.
"""

import logging

from flows.compat.prefect import materialize
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from gpt2train.store.output import Origins

log = logging.getLogger("gpt2train")

FORBIDDEN = frozenset("\n\r\t\0 #?&%\"'<>[]{}|\\^`")  # by Prefect's rule for a key
MAX_KEY = 512  # characters


class AssetLineage:
    """Assets of the steps that a flow run has finished, found finished or read from an earlier flow."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # by the step's name and by the identity of its output
        self._origins = Origins()

    def add_folder(self, step: str, folder: Folder) -> None:
        """Note where a step of this flow writes."""
        self._keys[step] = asset_key(folder)

    def add(self, manifest: Manifest, folder: Folder | None = None) -> str:
        """Note the output of a step, in a folder of an earlier flow or in the one noted before; return its key."""
        key = asset_key(folder) if folder else self._keys.get(manifest.step, "")
        self._keys[manifest.step] = self._keys[manifest.identity] = key
        self._origins.add(manifest)
        return key

    def materialize(self, manifest: Manifest) -> None:
        """Record in the current task run that it has made a step's output, and from which assets."""
        origins = self._origins.of(manifest)
        found = {self._keys.get(step.identity) for steps in origins.values() for step in steps}
        # Of a training's inputs its manifest has the hashes of their contents, by the names of the steps.
        found |= {self._keys.get(name) for name in manifest.inputs.keys() - origins.keys()}
        key = self.add(manifest)
        if not key:
            return
        facts = {
            "fingerprint": manifest.fingerprint,
            "content": manifest.content,
            "rows": manifest.outcome.kept,
            "bytes": sum(record.bytes for record in manifest.outcome.outputs),
        }
        try:
            materialize(key, sorted({other for other in found if other} - {key}), manifest.step, facts)
        except Exception as error:  # noqa: BLE001 - of Prefect, which the result of the run does not need
            log.warning("the asset of step %s is not recorded: %s: %s", manifest.step, type(error).__name__, error)


def asset_key(folder: Folder) -> str:
    """Return the URL of a folder in the characters of an asset key; empty if it is too long for one."""
    location = folder.location("").rstrip("/")
    url = f"file://{location}" if folder.is_local else location
    key = "".join("-" if character in FORBIDDEN else character for character in url)
    return key if len(key) <= MAX_KEY else ""
