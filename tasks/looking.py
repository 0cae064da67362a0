"""A runner that runs nothing: it looks which steps are done, by their manifests, and leaves the disk as it is."""

from collections.abc import Callable
from typing import Any

from gpt2train.errors import RunError, UserError
from tasks.runner import Runner
from tasks.steps import Manifest, Outcome, Step

TO_COME = "to come"  # fingerprint of what a step that has yet to run will leave


class _Looked(Exception):
    def __init__(self, step: Step, manifest: Manifest | None) -> None:
        super().__init__(step.name)
        self.step, self.manifest = step, manifest


class Looker(Runner):
    """Goes through a recipe and notes what it would do.

    Attributes:
        steps: name, and the manifest of one that is done, of each step in order. One below a step that is to run is to
            run as well, unless what comes out above is what came out before.
    """

    def __init__(self, *, verify: bool = False) -> None:
        super().__init__(1, verify=verify)
        self.steps: list[tuple[str, Manifest | None]] = []

    def finished(self, step: Step) -> Manifest | None:
        """Ends the step's function with what its manifest says, before it begins anything."""
        step.verify = self.verify
        raise _Looked(step, step.finished())

    def look(self, name: str, function: Callable[..., Manifest], arguments: tuple[Any, ...], options: Any) -> Manifest:
        """The manifest of a step that is done; of one to come, what can be known of it."""
        folder = name
        try:
            function(*arguments, runner=self, **options)
            raise AssertionError(f"{name} did not ask whether it is finished")
        except _Looked as looked:
            found, folder = looked.manifest, looked.step.folder_name
        except (UserError, RunError, OSError, LookupError, ValueError):
            if all(manifest for _, manifest in self.steps):
                raise  # a fault of the user's; otherwise a file that a step above has yet to write
            found = None
        self.steps.append((name, found))
        return found or Manifest(
            step=name,
            version=0,
            fingerprint=TO_COME,
            content=TO_COME,
            folder=folder,
            parameters={},
            inputs={},
            outcome=Outcome(),
            versions={},
        )
