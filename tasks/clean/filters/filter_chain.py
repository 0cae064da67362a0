"""Chain of the opt-in quality filters: settings of all, and their application to a text."""

import hashlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field, create_model

from gpt2train.errors import RunError, UserError
from gpt2train.settings import Settings, in_home
from gpt2train.store.manifest import digest
from tasks.clean.filters import (  # noqa: F401 (they register themselves)
    c4,
    cleanup,
    fasttext_model,
    fineweb,
    fineweb_edu,
    gopher,
    pii,
    quality,
    repetition,
)
from tasks.clean.filters.registry import FilterModel, LocalModel, Replacement, TextFilter, filters
from tasks.clean.filters.verdict import Rejection
from tasks.core.input_files import find_inputs, read_any

ABOUT = "Opt-in quality filters; all are off by default."

if TYPE_CHECKING:

    class FilterSettings(Settings):
        """Settings of all filters, one group each."""
else:
    FilterSettings = create_model(
        "FilterSettings",
        __base__=Settings,
        __module__=__name__,
        __doc__=ABOUT,
        **{
            name: (item.settings, Field(item.settings(), description=inspect.getdoc(item.settings)))
            for name, item in filters().items()
        },
    )


class Filtered(NamedTuple):
    """Result of the filters for a text."""

    text: str  # text as changed by the filters
    found: Rejection | None  # rejection of the text; None: it is kept
    facts: dict[str, int]  # counts of the filters that replaced the text, by name; empty for a rejected one


def apply(
    text: str, language: str | None, settings: FilterSettings, files: Mapping[str, bytes | LocalModel] | None = None
) -> Filtered:
    """Apply the enabled filters to a repaired text in a language, up to the first that rejects it.

    `files` is what `filter_files` returned for these settings.

    Raises:
        RunError: The function of a plug-in returned something else than a filter may.
    """
    facts: Counter[str] = Counter()
    for name, item, options in _enabled(settings):
        more = [*([language] if item.uses_language else []), *([(files or {}).get(name)] if item.file else [])]
        result = item.function(text, options, *more)
        if isinstance(result, Rejection):
            return Filtered(text, result, {})
        if isinstance(result, Replacement):
            text = result.text
            facts.update(result.facts)
        elif result is not None:
            kind = type(result).__name__
            raise RunError(f"text filter {name} returned {kind}; return a Rejection, a Replacement or None")
    return Filtered(text, None, dict(facts))


def need_language(settings: FilterSettings) -> bool:
    """Return True if an enabled filter asks for the language of a text."""
    return any(item.uses_language and item.uses_language(options) for _, item, options in _enabled(settings))


def filter_files(settings: FilterSettings) -> dict[str, bytes | LocalModel]:
    """Contents of the files that the enabled filters need, or their models, by the filter's name.

    Raises:
        UserError: A file cannot be read, or is none of its filter.
    """
    found: dict[str, bytes | LocalModel] = {}
    for name, item, options in _enabled(settings):
        if item.file is None:
            continue
        location = str(getattr(options, item.file.field))
        if isinstance(item.file, FilterModel):
            flag = f"--clean.filters.{name}.{item.file.field}"
            found[name] = model = _local_model(location, flag, item.file.suffixes)
            item.file.check(model, options)
        else:
            found[name] = content = read_any(location)
            item.file.check(content, location)
    return found


def file_hash(file: bytes | LocalModel) -> str:
    """Hash of the content of a filter's file or model, for the fingerprint."""
    return file.sha256 if isinstance(file, LocalModel) else hashlib.sha256(file).hexdigest()


def _local_model(location: str, flag: str, suffixes: tuple[str, ...]) -> LocalModel:
    path = Path(in_home(location)).absolute()
    kind = "folder" if suffixes else "file"
    if "://" in location or path.is_dir() != bool(suffixes):
        raise UserError(f"{location} is no {kind} on the local disk; give the path of one with {flag}")
    files = find_inputs([str(path)], flag, suffixes)
    if not suffixes:
        return LocalModel(files[0].location, files[0].identity)
    return LocalModel(str(path), digest([[file.name, file.identity] for file in files]))


def not_in_fingerprint(settings: FilterSettings) -> dict[str, bool | set[str]]:
    """Settings that the outputs do not depend on, for pydantic's `exclude`.

    These are all settings of the filters that are off and are plug-ins or have a model, and the names of the filters'
    files: the fingerprint has the files' contents.
    """
    used = {name for name, _, _ in _enabled(settings)}
    unused: dict[str, bool | set[str]] = {
        name: True
        for name, item in filters().items()
        if (item.distributions or isinstance(item.file, FilterModel)) and name not in used
    }
    return unused | {name: {item.file.field} for name, item in filters().items() if item.file and name not in unused}


def filter_packages(settings: FilterSettings) -> list[str]:
    """Distributions of the filters that are on, their plug-ins' and those they use: the outputs depend on them."""
    enabled = _enabled(settings)
    return sorted({package for _, item, own in enabled for package in (*item.distributions, *item.packages(own))})


def _enabled(settings: FilterSettings) -> Iterator[tuple[str, TextFilter, Settings]]:
    for name, item in filters().items():
        options = getattr(settings, name)
        if options.enabled:
            yield name, item, options
