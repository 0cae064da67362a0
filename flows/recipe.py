"""Flow as an object: its settings, its check, its recipe and its result, for runs and dry runs alike.

A recipe is the only composition of a flow's steps. A run of the flow is the recipe with the Prefect runner; a dry run
is the same recipe with the dry runner, which runs no step and records which of them are finished.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, ClassVar, Generic, TypeVar

from flows.dry_run.plan import Rows, disk_row, step_rows
from flows.dry_run.resources import MissingResourcesError, RunEstimate, TrainingEstimate, estimate_run
from flows.settings import FlowSettings
from flows.ui.artifact_publisher import ArtifactPublisher
from gpt2train.errors import RunError, UserError, redact
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core.dry_runner import DryRunner
from tasks.core.runner import Runner
from tasks.core.step import Environment

S = TypeVar("S", bound=FlowSettings, covariant=True)


class PlannedRun(ABC, Generic[S]):
    """A run of a flow before its first step; each flow is a subclass, whose docstring Prefect's UI shows.

    Check, dry run and run share one object, so that inputs are read once.

    Attributes:
        name: Name of the flow, the first half of its deployments' names.
        model: Settings model of the flow.
        result_name: Name of the result in the last line of the command's output.
        has_plan: True for a flow whose run page shows the resources that it needs.
        settings: Settings of this run.
    """

    name: ClassVar[str]
    model: ClassVar[type[Any]]
    result_name: ClassVar[str]
    has_plan: ClassVar[bool] = True

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def check(self) -> None:
        """Find what can be found before the run starts.

        Raises:
            UserError: an input is missing or wrong, or the output cannot be written.
            RunError: what an earlier run should have made is missing or unfinished.
        """

    @abstractmethod
    def recipe(self, runner: Runner) -> Any:
        """Run all steps of the flow and return what `conclude` needs: their manifests."""

    @abstractmethod
    def conclude(self, made: Any, publisher: ArtifactPublisher) -> str:
        """Show the result of the recipe on the run page, and return the path of the result."""

    @property
    def root(self) -> Folder:
        """Output folder of the run."""
        return Folder(self.settings.output)

    def subject(self) -> list[str]:
        """Parts of the run's name after that of the flow: sources, preset, layout, output."""
        return [PurePosixPath(self.settings.output).name]

    def data_bytes(self) -> int:
        """Estimate the bytes that the data steps still have to write."""
        return 0

    def training(self) -> TrainingEstimate | None:
        """Estimate the training; None for a flow that has none, or whose training is not estimated."""
        return None

    @cached_property
    def estimate(self) -> RunEstimate:
        """Resources that the run needs, and those that are missing, as the first check of them finds them."""
        return estimate_run(self.settings.output, self.data_bytes(), self.training())

    def rows(self, estimate: RunEstimate) -> Rows:
        """Return the rows of the plan without steps and missing resources: sources, training, disk."""
        return [disk_row(self.settings.output, estimate)]

    def plan(self) -> Rows:
        """Return the rows of the plan without the steps: sources, needed resources, missing resources."""
        return [*self.rows(self.estimate), ("missing", "; ".join(self.estimate.missing) or "nothing")]

    def plan_page(self) -> str:
        """Format the plan as Markdown, without the steps: the run page has an artifact of its own for them."""
        return "| | |\n|---|---|\n" + "".join(f"| {name} | {text} |\n" for name, text in self.plan())

    def step_notes(self) -> dict[str, str]:
        """Return notes about steps that are to run, for the plan."""
        return {}

    def cached_steps(
        self, *, verify: bool = False, environment: Environment = "redo"
    ) -> list[tuple[str, Manifest | None]]:
        """Return name and manifest of each step in order; the manifest is None for a step that has to run.

        With `verify` the hashes of finished outputs are compared too.
        """
        runner = DryRunner(verify=verify, environment=environment)
        self.recipe(runner)
        return runner.steps

    def shown_plan(self) -> str:
        """Format the whole plan as text: steps, sources, training, disk."""
        plan = self.plan()
        steps = self.cached_steps(verify=self.settings.verify, environment=self.settings.environment)
        return "\n".join(f"{name:<12}{text}".rstrip() for name, text in [*step_rows(steps, self.step_notes()), *plan])

    def dry_run(self, show: Callable[[str], object]) -> str:
        """Show the plan, and raise the error with which the run would refuse to start.

        The callback `show` gets the plan, also if this machine lacks resources or if an earlier step is not finished.

        Returns:
            The plan.

        Raises:
            UserError: the run would refuse these settings. The plan is shown only if the machine lacks resources.
            RunError: an earlier step that the run needs is not finished.
        """
        problem: UserError | RunError | None = None
        try:
            self.check()
        except (MissingResourcesError, RunError) as error:
            problem = error
        try:
            text = redact(self.shown_plan())
        except (UserError, RunError) as error:
            raise problem or error from None
        show(text)
        if problem is not None:
            raise problem
        return text
