"""Help pages of the flow commands: `--help` with the usual settings, `--help-all` with all settings by step."""

from typing import Any

import cyclopts
from pydantic import BaseModel

import flows
from flows.ui.flags import flags_model
from gpt2train.settings import Settings, described
from tasks.data_steps.registry import DATA_STEPS

# Settings on the page of `--help`, in this order; a command shows those that its flow has.
USUAL = (
    *("run", "config", "model", "task", "urls", "domains", "warcs", "documents", "data", "tokens", "split", "valid"),
    *("output", "preset"),
    *("tokenizer.name", "lambada", "download.user_agent", "workers", "runner"),
    *("train.steps", "launch.processes", "score", "dry_run", "retry_failed", "refresh"),
)
STEPS = (
    *("limits", "discover", "blacklist", "download", "warc", "webpages", "texts", "extract", "boilerplate", "clean"),
    *("cloze", "decontaminate", "dedup", *DATA_STEPS, "substrings", "shuffle", "tokenizer", "tokenize"),
    *("train", "launch", "merge", "evaluate", "report"),
)
ALL_FLAG = "--help-all"


class FlowApp(cyclopts.App):
    """Cyclopts app whose help page lists the usual settings, or all settings grouped by step."""

    # Set by `flow_app`. Cyclopts creates further apps of this class, for the flags of the help page.
    settings_model: type[Settings] | None = None
    shows_all = False

    def print_all(self) -> None:
        """Print the help page of all settings."""
        self.shows_all = True
        try:
            self.help_print([])
        finally:
            self.shows_all = False

    def assemble_argument_collection(self, **options: Any) -> cyclopts.ArgumentCollection:
        """Collect the arguments and set the group, order and visibility of each on the help page."""
        if self.settings_model is None:
            return super().assemble_argument_collection(**options)
        # Cyclopts would parse the source of each settings class and of its bases: 4.3 of 4.7 s for the help page.
        if is_page := bool(options.get("parse_docstring")):
            model: type[Settings] = described(self.settings_model)
            described(flags_model(model))
        found = super().assemble_argument_collection(**{**options, "parse_docstring": False})
        groups: dict[str, cyclopts.Group] = {}
        for argument in found:
            name = setting_of(argument)
            title, order = self._group_of(name)
            if title not in groups:
                groups[title] = cyclopts.Group(title, help=self._about(title), sort_key=order)
            shown = argument.show and (self.shows_all or name in USUAL)
            # The preset sets the defaults of `train.*`, whatever the model's own default is. An empty default is none.
            known = not name.startswith("train.") and argument.field_info.default not in ((), None)
            default = None if argument.show_default is True and known else False
            # A list takes all words after its flag: a shell replaces `--warcs cc/*.warc.gz` by several.
            more = cyclopts.Parameter(group=groups[title], show=shown, show_default=default, consume_multiple=1)
            argument.parameter = cyclopts.Parameter.combine(argument.parameter, more)
        if is_page and not self.shows_all:
            usual = {name: index for index, name in enumerate(USUAL)}
            found.sort(key=lambda argument: usual.get(setting_of(argument), len(usual)))
        return found

    def _group_of(self, name: str) -> tuple[str, tuple[int, str]]:
        """Heading of a setting, and the sort key of the heading on the page."""
        step, *rest = name.split(".")
        if not self.shows_all or step not in STEPS:
            return "Usual settings" if not self.shows_all else "Run and sources", (0, "")
        title = f"{step}.{rest[0]}" if step == "train" and len(rest) > 1 else step
        return title, (1 + STEPS.index(step), title)

    def _about(self, title: str) -> str:
        """Text under a heading: the help text of the settings group."""
        model: type[BaseModel] | None = self.settings_model
        text = ""
        for part in title.split("."):
            field = model.model_fields.get(part) if model else None
            if field is None:
                return ""
            text = field.description or ""
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                model = field.annotation
        if title.startswith("train"):
            text += " A setting that is not given comes from the preset."
        return text


def setting_of(argument: cyclopts.Argument) -> str:
    """Return the dotted name of the setting that a flag sets."""
    return argument.name.removeprefix("--").replace("-", "_")


def flow_app(flow: str, model: type[Settings], about: str) -> FlowApp:
    """Create the app of a flow's command, without its default function."""
    name = f"{flows.program}{flow}"
    app = FlowApp(name=name, usage=f"Usage: {name} [OPTIONS]", help=about, version_flags=[])
    app.help_epilogue = f"`{ALL_FLAG}` shows every setting, `--debug` the traceback of an error."
    app.settings_model = model
    app["--help"].show = False  # not listed: it is the flag of this very page
    return app
