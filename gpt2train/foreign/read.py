"""Settings of another system, as its user gave them: names and values of a command line, a script or a config."""

import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from gpt2train.errors import UserError, not_utf8
from gpt2train.foreign.python_config import read_python
from gpt2train.foreign.shell import MAX_SCRIPT, Script
from gpt2train.foreign.table import System, systems

MAX_VALUES = 5_000  # of a config; one whose aliases repeat each other is refused
MAX_DEPTH = 20
PROGRAM = 3  # names that a recognised program is worth; several systems have a train.py
SHOWN = 60  # characters of a value in a remark
SEVERAL = (
    "data_path",
    "train_data_path",
    "valid_data_path",
    "dataset",
    "rampup_batch_size",
    "step_batch_size_schedule",
)
CONFIGS = ("deepspeed_config", "deepspeed", "config", "config_file", "job.config_file")
OURS = ("train.", "batch.", "schedule.", "scaler.", "data.train", "model.layers")  # names in a run file of gpt2train
KINDS = {".json": "JSON", ".py": "Python", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".sh": "shell"}


@dataclass(frozen=True)
class Given:
    """A value that the user of another system gave."""

    name: str  # its name there, with underscores
    value: Any  # number, text, truth value, list, or True for an option without a value
    source: str  # the text in which it is given, shortened


@dataclass
class Foreign:
    """Everything that a command line, a script or a config of another system says."""

    system: System  # the system
    title: str  # what it is, for the head of the new file
    given: list[Given]  # its values, later ones in force
    program: str = ""  # the program of a command line, empty for a config
    notes: list[str] = field(default_factory=list)  # what could not be read


def read_foreign(source: str) -> Foreign:
    """Read a file of another system, or a command line.

    The source is the path of a shell script or of a config (JSON, Python, YAML, TOML), or a command line.

    Raises:
        UserError: there is no such file, it cannot be read, or no other system is recognised in it.
    """
    path = Path(source)
    if any(letter in source for letter in " \n\t") and not _is_file(path):
        return _of_commands(Script(source), "a command line")
    text = _read(path)
    if path.suffix in KINDS and path.suffix != ".sh":
        return _of_config(path, text, path.suffix)
    return _of_commands(Script(text, path.parent), path.name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise UserError(f"there is no file {path}; give a script, a config, or a command line in quotes")
        if path.stat().st_size > MAX_SCRIPT:
            raise UserError(f"{path} has more than {MAX_SCRIPT:,} bytes, which no script or config has")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {not_utf8(error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is no text: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error


def _of_config(path: Path, text: str, suffix: str) -> Foreign:
    values, called, used = parsed_config(suffix, text, path.name)
    names = dict.fromkeys(values, 1)
    system, count = _most_likely(names, called=called)
    if suffix == ".toml" and any(name.startswith(OURS) for name in values):
        raise UserError(f"{path} has settings of gpt2train already; give it to --config")
    if not _is_enough(count, names):
        known = ", ".join(one.title for one in systems().values())
        raise UserError(f"{path} has no name of a system that is known ({known}); write its settings into a run file")
    given = [
        Given(name, value, f"{name} = {_shown(value)}")
        for name, value in values.items()
        if value is not None and (name not in used or system.row(name) is not None)
    ]
    return Foreign(system, f"{path.name} of {system.title}", given)


def parsed_config(suffix: str, text: str, name: str) -> tuple[dict[str, Any], tuple[str, ...], Collection[str]]:
    """Read the values of a config.

    Returns:
        The values by dotted names, the systems whose functions it calls, and the names that other values are made of.

    Raises:
        UserError: it cannot be parsed, or has too many values.
    """
    if suffix == ".py":
        for key, system in systems().items():
            if system.calls and (found := read_python(text, name, system.calls)).called:
                return found.values, (key,), found.used
        found = read_python(text, name)
        return found.values, (), found.used
    try:
        if suffix == ".json":
            values = json.loads(text)
        elif suffix == ".toml":
            values = tomllib.loads(text)
        else:
            import yaml  # a training needs it for nothing else

            values = yaml.safe_load(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{name} is not valid {KINDS[suffix]}: {error}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        raise UserError(f"{name} is no table of names and values")
    flat: dict[str, Any] = {}
    _flatten(values, "", flat, [MAX_VALUES])
    return flat, (), ()


def _flatten(value: Any, name: str, flat: dict[str, Any], left: list[int], depth: int = 0) -> None:
    """Add the values of a table to a flat one; `left` counts down, since aliases of YAML multiply."""
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise UserError(f"more than {MAX_VALUES:,} values, or {MAX_DEPTH} levels of them, are no config")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), flat, left, depth + 1)
        return
    if isinstance(value, list):
        for inner in value:
            _flatten(inner, name, {}, left, depth + 1)
    if value is not None:
        flat[name] = value


def _of_commands(script: Script, title: str) -> Foreign:
    """The command of a script that trains: the one of a known program, or with the most names that are known."""
    best: tuple[int, System, list[str]] | None = None  # of the last command with the most names
    for words in script.commands:
        names = Counter(name for word in words if word.startswith("-") and (name := _name_of(word)))
        system, count = _most_likely(names, words)
        if _is_enough(count, names) and (best is None or count >= best[0]):
            best = (count, system, words)
    if best is None:
        raise UserError(f"no command in {title} has options of a known system; give the command that trains, in quotes")
    _, system, words = best
    program = next((word for word in words if re.search(system.program, word)), "") if system.program else ""
    files = _files_of(words, script)
    given = [one for values in files.values() for one in values]
    given += [one for one in _options(words) if not (isinstance(one.value, str) and one.value in files)]
    if not program and (other := next((word for word in words if word.endswith(".py")), "")):
        script.notes.append(f"{other} is no training that is known; its names are taken for those of {system.title}")
    return Foreign(system, f"{title}, {system.title}", given, program, script.notes)


def _name_of(word: str) -> str:
    """Name of an option without dashes and value; empty for a negative number."""
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    return "" if not name or name[0].isdigit() or name[0] == "." else name


def _options(words: Sequence[str]) -> Iterator[Given]:
    """The options of a command: `--x 1`, `--x=1`, `--x`; several values only where an option takes them."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("-") or not (name := _name_of(word)):
            continue
        _, equals, text = word.partition("=")
        values = [text] if equals else []
        while not equals and place < len(words) and not (words[place].startswith("-") and _name_of(words[place])):
            values.append(words[place])
            place += 1
            if name not in SEVERAL:
                break
        name = "include" if name == "i" else name  # of DeepSpeed's launcher
        value: Any = [_literal(one) for one in values] if len(values) > 1 else _literal(values[0]) if values else True
        yield Given(name, value, f"{word.partition('=')[0]} {_shown(' '.join(values))}".strip())


def _files_of(words: Sequence[str], script: Script) -> dict[str, list[Given]]:
    """Values of the configs that a command names, by their paths: DeepSpeed's, or nanoGPT's `train.py config.py`."""
    found: dict[str, list[Given]] = {}
    for before, given in itertools.pairwise(words):
        option, _, word = given.partition("=") if given.startswith("-") else (before, "", given)
        path, name = Path(word), _name_of(option) if option.startswith("-") else ""
        config = name in CONFIGS or (path.suffix == ".py" and before.endswith(".py"))
        if not config or path.suffix not in KINDS or path.suffix == ".sh":
            continue
        file = next((one for one in (script.folder / word, script.folder / path.name) if _is_file(one)), None)
        if file is None:
            script.notes.append(f"{word}: there is no such file beside the script")
            continue
        values, *_ = parsed_config(path.suffix, _read(file), file.name)
        found[word] = [Given(key, value, f"{key} = {_shown(value)} of {file.name}") for key, value in values.items()]
    return found


def _is_enough(count: int, names: Mapping[str, int]) -> bool:
    """Return True if so many known names make a system: one of several, such as `seed`, is of any program."""
    return count >= min(2, max(1, sum(names.values())))


def _most_likely(names: Mapping[str, int], words: Sequence[str] = (), called: Sequence[str] = ()) -> tuple[System, int]:
    """The system with the most of these names, and their number; a program that is recognised decides."""
    counts = {}
    for key, system in systems().items():
        count = sum(number for name, number in names.items() if system.row(name) is not None)
        by_program = bool(system.program) and any(re.search(system.program, word) for word in words)
        counts[key] = count + PROGRAM * (count > 0 and (by_program or key in called))
    best = max(counts, key=lambda key: counts[key])
    return systems()[best], counts[best]


def config_of_another_system(path: Path) -> str | None:
    """Say what a file is that is no TOML, and how it becomes a run file; None if it is of no system that is known."""
    try:
        text = _read(path)
        by_content = {"{": ".json", "#": ".sh"}.get(text.lstrip()[:1], ".py")
        suffix = path.suffix if path.suffix in KINDS else by_content
        of_script = suffix == ".sh"
        found = _of_commands(Script(text, path.parent), path.name) if of_script else _of_config(path, text, suffix)
    except UserError:
        return None
    kind, system = "script" if of_script else "config", found.system
    return (
        f"{path} is a {kind} of {system.title} in {KINDS[suffix]}, not settings in TOML; "
        f"convert it (docs/{system.page}.md): gpt2train config --from {quote(str(path))}"
    )


def _literal(text: str) -> Any:
    """A number or truth value as Python writes it, else the text itself."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":  # quoted within a variable, which keeps the quotes
        text = text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def _shown(value: Any) -> str:
    """A value for a remark, shortened."""
    text = str(value)[: SHOWN + 1]
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
