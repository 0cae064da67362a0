"""Several steps of one kind taken as one input of the next step."""

from collections.abc import Sequence

from tasks.steps import Manifest, Outcome, digest


def together(manifests: Sequence[Manifest]) -> Manifest:
    """The outputs of several finished steps, in their order, as if one step had left them; one step stays itself.

    Nothing is written: the files stay in the folders of their steps, and the names begin with these.
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
