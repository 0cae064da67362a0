"""Registry of the text filters, built-in ones and those of plug-ins (docs/develop/add-a-filter.md).

The module of a filter registers it when it is imported. This module imports no filter and no settings of a step, so
that a plug-in can be imported first.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpt2train.errors import UserError
from gpt2train.plugins import Registry, distributions_of
from gpt2train.settings import Settings
from tasks.clean.filters.verdict import Rejection


class Replacement(NamedTuple):
    """Another text in place of the one that a filter got."""

    text: str
    facts: Mapping[str, int] = {}  # counts that the manifest of the step adds up over the kept documents, by name


class FilterFile(NamedTuple):
    """File that a filter needs. Its content is part of the fingerprint of the cleaning, its name is not."""

    field: str  # setting of the filter that has the path or URL
    check: Callable[[bytes, str], object]
    """Called with the content and the name before the cleaning begins; raises UserError for another kind of file."""


class LocalModel(NamedTuple):
    """Model on the local disk that is too large to be sent to the workers: they open it by its path."""

    path: str  # absolute path of the file or folder
    sha256: str  # hash of the content, so that a worker opens a file again whose content has changed


class FilterModel(NamedTuple):
    """Model that a filter opens by its path. The fingerprint of the cleaning has its content, not its path."""

    field: str  # setting of the filter that has the path
    check: Callable[[LocalModel, Any], object]
    """Called with the model and the filter's settings before the cleaning begins; raises UserError for another kind of
    file."""
    suffixes: tuple[str, ...] = ()  # suffixes of the files of a model that is a folder; empty for one that is a file


@dataclass(frozen=True)
class TextFilter:
    """A filter of the cleaning.

    Attributes:
        settings: Settings model, the group `clean.filters.NAME`. The filter is applied if its `enabled`, a field or a
            property, is True; by default it is False.
        function: Called with the text and the settings, in a worker process. Returns a rejection, a replacement, or
            None, which keeps the text as it is. The result depends on the arguments alone.
        order: Position in the chain, ascending; filters of equal order are sorted by name. The built-in ones have 100
            to 600.
        uses_language: Returns True for settings with which the filter asks for the language of the text. `function`
            then has a third parameter, the ISO 639 code (None if the text has no letters).
        file: File that the filter needs: its content, bytes, is the last argument of `function`; that of a
            `FilterModel` is a `LocalModel`.
        packages: Returns the distributions whose rules the filter applies under its settings.
    """

    settings: type[Settings]
    function: Callable[..., Rejection | Replacement | None]
    order: int
    uses_language: Callable[[Any], bool] | None = None
    file: FilterFile | FilterModel | None = None
    packages: Callable[[Any], Sequence[str]] = lambda settings: ()

    @functools.cached_property
    def distributions(self) -> tuple[str, ...]:
        """Names of the distributions of a plug-in filter; empty for a built-in one."""
        return distributions_of(self.function)


_FILTERS: Registry[TextFilter] = Registry("text filter")


def register_filter(name: str, text_filter: TextFilter) -> None:
    """Add a filter under the name of its settings group.

    Raises:
        UserError: The name is taken or is not one of a setting, the filter is not off by default, or the settings of
            the cleaning exist already.
    """
    _FILTERS.check_name(name)
    if getattr(text_filter.settings(), "enabled", None) is not False:
        raise UserError(f"text filter {name} is not off by default; give its settings `enabled: bool = False`")
    if filters.cache_info().currsize:
        raise UserError(f"text filter {name} comes after the settings of the cleaning; its module must not import them")
    _FILTERS.register(name, text_filter)


@functools.cache
def filters() -> dict[str, TextFilter]:
    """All filters by name, in the order in which they are applied. No more can be registered afterwards."""
    return dict(sorted(_FILTERS.items(), key=lambda item: (item[1].order, item[0])))
