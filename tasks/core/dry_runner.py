"""Dry runner: finds the steps that are already done, by their manifests, and neither runs nor writes anything."""

from collections.abc import Callable
from typing import Any

from gpt2train.errors import RunError, UserError
from tasks.core.runner import Runner
from tasks.core.step import Manifest, Outcome, Step

PENDING = "to come"  # fingerprint of a step that has not run yet


class _FinishedCalledError(Exception):
    """Raised by `DryRunner.finished` to end the function of a step with the step's manifest."""

    def __init__(self, step: Step, manifest: Manifest | None) -> None:
        super().__init__(step.name)
        self.step, self.manifest = step, manifest


class DryRunner(Runner):
    """Records which steps of a recipe would be skipped and which would run.

    Attributes:
        steps: Name of each step in order, with its manifest if it is done, else None. A step after one that has to run
            counts as not done, although it is skipped in the end if the outputs of the earlier step do not change.
    """

    def __init__(self, *, verify: bool = False) -> None:
        super().__init__(1, verify=verify)
        self.steps: list[tuple[str, Manifest | None]] = []

    def finished(self, step: Step) -> Manifest | None:
        """End the step's function before it does any work."""
        step.verify = self.verify
        raise _FinishedCalledError(step, step.finished())

    def look(self, name: str, function: Callable[..., Manifest], arguments: tuple[Any, ...], options: Any) -> Manifest:
        """Call a step's function up to `finished`.

        Args:
            name: Name of the step.
            function: The step's function.
            arguments: Its positional arguments.
            options: Its keyword arguments, without `runner`.

        Returns:
            The manifest of a step that is done, or a placeholder for one that has to run.
        """
        folder = name
        try:
            function(*arguments, runner=self, **options)
            raise AssertionError(f"{name} did not call `finished`")
        except _FinishedCalledError as call:
            found, folder = call.manifest, call.step.folder_name
        except (UserError, RunError, OSError, LookupError, ValueError):
            if all(manifest for _, manifest in self.steps):
                raise  # a user's mistake; otherwise, an earlier step has not written its files yet
            found = None
        self.steps.append((name, found))
        return found or Manifest(
            step=name,
            version=0,
            fingerprint=PENDING,
            content=PENDING,
            folder=folder,
            parameters={},
            inputs={},
            outcome=Outcome(),
            versions={},
        )
