"""Dry runner: finds the steps that are already done, by their manifests, and neither runs nor writes anything."""

from collections.abc import Callable
from typing import Any

from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, read_manifest
from tasks.core.runner import Retries, Runner, step_name
from tasks.core.step import Environment, Step

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

    is_dry_run = True

    def __init__(self, *, verify: bool = False, environment: Environment = "redo") -> None:
        super().__init__(1, verify=verify, environment=environment)
        self.steps: list[tuple[str, Manifest | None]] = []
        self._lacks_inputs = False  # a step that is not done has been handed on as a placeholder

    def input_manifest(self, folder: Folder) -> Manifest:
        """Return the manifest of a step of an earlier flow, or a placeholder if it is not done."""
        return read_manifest(folder) or self._placeholder(folder.url.rpartition("/")[2])

    def finished(self, step: Step) -> Manifest | None:
        """End the step's function before it does any work."""
        self.prepare(step)
        if (found := step.finished()) is None:
            step.check_own()
        raise _FinishedCalledError(step, found)

    def run_step(
        self,
        function: Callable[..., Manifest],
        *arguments: Any,
        retries: Retries = Retries(),  # noqa: B008 - frozen
        **options: Any,
    ) -> Manifest:
        """Call a step's function up to `finished`, record the step, and return its manifest or a placeholder.

        Raises:
            UserError: The step refuses its inputs.
        """
        folder = name = step_name(function)
        try:
            function(*arguments, runner=self, **options)
            raise AssertionError(f"{name} did not call `finished`")
        except _FinishedCalledError as call:
            found, folder = call.manifest, call.step.folder_name
        except (UserError, RunError, OSError, LookupError, ValueError):
            if not self._lacks_inputs:
                raise  # a user's mistake; otherwise, an earlier step has not written its files yet
            found = None
        self.steps.append((name, found))
        return found or self._placeholder(name, folder)

    def _placeholder(self, name: str, folder: str | None = None) -> Manifest:
        """Return a manifest in place of that of a step that has to run."""
        self._lacks_inputs = True
        return Manifest(
            step=name,
            version=0,
            fingerprint=PENDING,
            content=PENDING,
            folder=folder or name,
            parameters={},
            inputs={},
            outcome=Outcome(),
            versions={},
        )
