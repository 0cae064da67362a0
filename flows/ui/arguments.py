"""Arguments and help pages of the flow commands, without Prefect, whose import takes longer than all else here."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import cyclopts

from flows.finetune_settings import FinetuneFlowSettings
from flows.settings import (
    DataprepSettings,
    EvaluateFlowSettings,
    LayeredSettings,
    PipelineSettings,
    PretrainFlowSettings,
    resolve,
)
from flows.ui.commands import FLOWS
from flows.ui.flags import dump, flags_model
from flows.ui.help import ALL_FLAG, FlowApp, flow_app
from gpt2train.command_line import run_command

S = TypeVar("S", bound=LayeredSettings)

MODELS: dict[str, type[LayeredSettings]] = {
    "dataprep": DataprepSettings,
    "evaluate": EvaluateFlowSettings,
    "finetune": FinetuneFlowSettings,
    "pipeline": PipelineSettings,
    "pretrain": PretrainFlowSettings,
}
resolved: LayeredSettings | None = None  # of the command of this process
CONFIG_HELP = "TOML file of settings, or a deployment's name. Flags override it; it overrides the preset."


def arguments_app(name: str, model: type[S], about: str, use: Callable[[S], object]) -> FlowApp:
    """Create the app of a flow's command, whose flags are the fields of `model`; `use` gets the settings."""
    app = flow_app(name, model, about)
    flags_of = flags_model(model)

    @app.default
    def main(
        *,
        config: Annotated[str | None, cyclopts.Parameter(help=CONFIG_HELP)] = None,
        settings: Annotated[flags_of | None, cyclopts.Parameter(name="*")] = None,  # type: ignore[valid-type]
        help_all: Annotated[bool, cyclopts.Parameter(name=ALL_FLAG, negative="", show=False)] = False,
    ) -> None:
        """Run the flow, or show every setting."""
        if help_all:
            app.print_all()
            return
        flags: dict[str, Any] = {} if settings is None else dump(settings, "python", given=True)
        use(resolve(model, config, flags))

    return app


def check_arguments(name: str, words: Sequence[str]) -> LayeredSettings:
    """Return the settings of a flow's command. Exit with its mistake, or after its help page."""

    def keep(settings: LayeredSettings) -> None:
        global resolved
        resolved = settings

    is_help = not {"--help", "-h", ALL_FLAG}.isdisjoint(words)
    code = run_command(arguments_app(name, MODELS[name], FLOWS[name], keep), words)
    if resolved is None or code or is_help:
        sys.exit(code)
    return resolved
