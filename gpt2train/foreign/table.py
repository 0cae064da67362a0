"""The table of other systems' names: which setting or option takes the place of each, or why there is none."""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SIMILAR = 0.7  # least similarity of a suggestion: `promt` and `prompt` have 0.91, `lr` and `cluster` 0.44
# Options of `python -m flows.pretrain` that are no field of its group `train`, by the key of a run file.
OF_A_FLOW = {"data.train": "tokens", "data.valid": "valid", "data.split": "split", "vocab": "vocab", "output": "output"}
PRETRAIN = "python -m flows.pretrain"
SHORT_GROUPS = ("", "parallel", "batch", "data")  # whose settings other commands have by their last part


@dataclass(frozen=True)
class Row:
    """Counterpart of a name."""

    name: str  # the name, with underscores
    to: tuple[str, ...] = ()
    """Settings of a run file, or options of commands as `--option of command`, the first one preferred."""
    value: Any = None  # value of the setting where the name is given without one; None if it needs one
    values: Mapping[str, Any] | None = None  # their values and ours, where they differ
    by: str | None = None  # name of the conversion that needs more than the value
    why: str = ""  # the reason why there is no setting, or a remark

    @property
    def setting(self) -> str | None:
        """The setting of a run file, if there is one."""
        return next((target for target in self.to if not target.startswith("--")), None)


@dataclass(frozen=True)
class System:
    """Another training system."""

    key: str  # its key in the table
    title: str  # its name
    page: str  # page of the docs, without its ending
    defaults: Mapping[str, Any]  # values that hold if the user gives none, by the setting or the name
    names: Mapping[str, Row]  # what takes the place of its own names
    program: str = ""  # expression for the program of its command lines; empty if there is none
    like: str | None = None  # key of a system whose names it has too
    calls: tuple[str, ...] = ()  # functions of Python whose arguments are names

    def row(self, name: str) -> Row | None:
        """Return the counterpart of a name, dashes or underscores, of this system or of one that it is like."""
        found = self.names.get(name.replace("-", "_"))
        return systems()[self.like].row(name) if found is None and self.like else found


@cache
def systems() -> dict[str, System]:
    """All systems by their key, in the order in which a name is followed."""
    found = {}
    for key, entry in tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8")).items():
        names = {name: _row(name, value) for group, value in entry["names"].items() for name in group.split(", ")}
        found[key] = System(key, **entry | {"calls": tuple(entry.get("calls", ())), "names": names})
    return found


def _row(name: str, value: str | Mapping[str, Any]) -> Row:
    if isinstance(value, str):
        return Row(name, (value,))
    to = value.get("to", ())
    to = (to,) if isinstance(to, str) else tuple(to)
    return Row(name, to, value.get("is"), value.get("map"), value.get("by"), value.get("why", ""))


def known(name: str) -> list[tuple[System, Row]]:
    """Systems that have a name, and what takes its place, the one to follow first.

    The name may have dashes, `--no-` before it, or be the end of a longer one (`local_batch_size`).
    """
    plain = name.lstrip("-").partition("=")[0].replace("-", "_")
    for form in filter(None, (plain, plain.removeprefix("no_"))):
        if found := [(system, system.names[form]) for system in systems().values() if form in system.names]:
            return found
    ending = f".{plain}"
    return [(one, row) for one in systems().values() for other, row in one.names.items() if other.endswith(ending)][:1]


def hint(name: str, options: Collection[str] | None = None) -> str | None:
    """Say in one sentence what takes the place of a name, or return None for a name of no system.

    The options are those of the command, with their dashes; None for a settings file.
    """
    found = known(name)
    if not found:
        return None
    system, row = found[0]
    sentences = [f"{system.title}'s {name} {_instead(row, options)}"]
    sentences += [
        f"{other.title}'s {_instead(another, options)}"
        for other, another in found[1:]
        if (another.to, another.by) != (row.to, row.by)
    ][:2]
    return f"{'; '.join(sentences)} (docs/{system.page}.md)"


def _instead(row: Row, options: Collection[str] | None) -> str:
    """The predicate of a hint: the first target that the command has, else the first one and its command."""
    remark = f": {row.why}" if row.why else ""
    if options is None and row.setting is not None:
        return f"is {row.setting} here{remark}"
    targets = [_target(target, row.value) for target in row.to]
    for forms, value, _ in targets:
        for form in forms:
            if form in (options or ()):
                return f"is {form}{value} here{remark}"
    if not targets or (row.why and row.setting is None):
        return f"has no counterpart here{remark}"
    forms, value, command = targets[0]
    return f"is {forms[0]}{value} of {command}{remark}"


def _is_elsewhere(name: str, options: Collection[str]) -> bool:
    """Return True if what takes the place of a name is no option of the command, but of others."""
    targets = [target for _, row in known(name) for target in row.to]
    return bool(targets) and not any(form in options for target in targets for form in _target(target, None)[0])


def _target(target: str, value: Any) -> tuple[list[str], str, str]:
    """Forms of a target's option, the value to give it, and the command that has the first form."""
    if target.startswith("--"):
        option, _, command = target.partition(" of ")
        return [option], "", command
    dashed = target.replace("_", "-")
    first = dashed if target.startswith("launch.") else OF_A_FLOW.get(target, f"train.{dashed}")
    group, _, leaf = dashed.rpartition(".")
    short = [leaf] if group in SHORT_GROUPS else []  # `--tp` of `gpt2train plan`
    forms = [f"--{form}" for form in dict.fromkeys((first, dashed, *short))]
    if isinstance(value, bool):
        if not value:
            head, _, tail = forms[0].rpartition(".")
            forms[0] = f"{head}.no-{tail}"
        return forms, "", PRETRAIN
    return forms, "" if value is None else f" {value}", PRETRAIN


def closest(name: str, options: Collection[str]) -> str | None:
    """The option that a mistyped one is closest to; None if none is close.

    An option with the last part of the name, `--train.optimizer.lr` for `--lr` and `--train.lr`, is the closest.
    """
    plain = name.lstrip("-").partition("=")[0].replace("_", "-")
    names = {option.lstrip("-"): option for option in sorted(options) if option.startswith("--")}
    if ends := [one for one in names if one.rpartition(".")[2] == plain.rpartition(".")[2]]:
        return names[min(ends, key=len)]
    near = difflib.get_close_matches(plain, names, n=1, cutoff=SIMILAR)
    return names[near[0]] if near else None


def unknown_option(name: str, options: Collection[str], *, sets: bool = False) -> str:
    """Describe an unknown option in one line: what takes its place if it is another system's, or the closest one.

    The options are those of the command, with their dashes; with `sets` it has settings by `--set` alone.
    """
    shown = name.partition("=")[0]
    group, _, last = shown.rpartition(".")
    near = closest(name, [one for one in options if group and one.startswith(f"{group}.")] or options)
    found = hint(shown, None if sets else options)
    if not (found or near) and any(last.replace("-", "_") in system.names for system in systems().values()):
        found = hint(f"--{last}", None if sets else options)  # of `--train.seq-length`, a name in a group of ours
    if found:
        nearer = f"; did you mean {near}?" if near and _is_elsewhere(shown, options) else ""
        return f"unknown option {shown}: {found}" + ("; give a setting by --set SETTING=VALUE" if sets else nearer)
    members = sorted(option for option in options if option.rpartition(".")[0] == group)
    if near or not (group and members):
        return f"unknown option {shown}; " + (f"did you mean {near}?" if near else "--help lists the options")
    return f"unknown option {shown}; {group} has {', '.join(one.removeprefix(group) for one in members)}"


def group_hint(name: str) -> str | None:
    """Say whose configs have a table of this name, such as `parallelism`; None for nobody's."""
    found = (one for one in systems().values() if any(row.startswith(f"{name}.") for row in one.names))
    if (system := next(found, None)) is None:
        return None
    return f"configs of {system.title} have it; convert them (docs/{system.page}.md): gpt2train config --from FILE"
