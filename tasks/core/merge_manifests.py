"""Merging of several steps' manifests into one input of the next step."""

from collections.abc import Sequence

from tasks.core.manifest import Manifest, Outcome, digest


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
