"""Edges between finished steps: those whose outputs each one has read, from their manifests alone.

An input is known by the identity of a step, by that of several steps in one (`merge_manifests`), or by the hash of a
file that a step has written (the drawn cloze set).
"""

import itertools
from collections.abc import Iterable

from gpt2train.store.manifest import Manifest, merge_manifests

# Steps whose outputs become one input, in order.
MERGED = (("download", "commoncrawl", "warcs", "webpages"), ("extract", "texts"))


class Origins:
    """Finished steps, found by what the manifests of later steps say of their inputs.

    Args:
        manifests: steps of one output.
    """

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
