"""Recipe of a flow: the only composition of its steps, for runs and dry runs alike.

A recipe is a function of a `PlannedRun` and a runner. A run of the flow is the recipe with the Prefect runner. A dry
run is the same recipe with the dry runner, which runs no step and records which of them are finished.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from flows.settings import EvaluateFlowSettings, OutputSettings, PretrainFlowSettings
from flows.sources import Sources
from gpt2train.settings import Settings
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.core.dry_runner import DryRunner
from tasks.core.runner import Runner
from tasks.core.step import Environment
from tasks.ready_tokens.tokens import ReadyTokens, open_ready_tokens

S = TypeVar("S", bound=Settings, covariant=True)

Recipe = Callable[["PlannedRun[Any]", Runner], object]


@dataclass(frozen=True)
class PlannedRun(Generic[S]):
    """A run of a flow before its first step. Checks, dry run and run share one, so that inputs are read once."""

    settings: S
    recipe: Recipe

    @cached_property
    def sources(self) -> Sources:
        """Input files of the run, found when they are first used."""
        return Sources(self.settings)

    @cached_property
    def ready_tokens(self) -> ReadyTokens | None:
        """Token files made elsewhere, opened when they are first used; None for tokens of the data flow.

        Raises:
            UserError: a file or the tokenizer is missing, damaged or of another kind.
        """
        settings = self.settings
        if not isinstance(settings, PretrainFlowSettings) or settings.tokens is None:
            return None
        return open_ready_tokens(settings.tokens, settings.split, settings.tokenizer, settings.vocab, settings.valid)

    @property
    def root(self) -> Folder:
        """Output folder of the run."""
        assert isinstance(self.settings, OutputSettings | EvaluateFlowSettings)
        return Folder(self.settings.output)

    def cached_steps(
        self, *, verify: bool = False, environment: Environment = "redo"
    ) -> list[tuple[str, Manifest | None]]:
        """Return name and manifest of each step in order; the manifest is None for a step that has to run.

        With `verify` the hashes of finished outputs are compared too.
        """
        runner = DryRunner(verify=verify, environment=environment)
        self.recipe(self, runner)
        return runner.steps
