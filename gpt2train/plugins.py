"""Plug-ins: installed distributions with models, objectives, callbacks, evaluations, launchers, data steps and filters.

A distribution names a module in the entry-point group `gpt2train`. Importing that module registers what it adds:

    [project.entry-points.gpt2train]
    my_filters = "my_package.filters"

One `Registry` for each kind of extension holds the built-in ones and those of plug-ins alike.
"""

import importlib
import importlib.metadata
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar

from gpt2train.errors import UserError
from gpt2train.settings import Settings

GROUP = "gpt2train"
NAME = re.compile(r"[a-z][a-z0-9_]*")

T = TypeVar("T")


class NoOptions(Settings):
    """Options of an extension that has none."""


class Registry(Generic[T]):
    """Extensions of one kind ("launcher", in messages) by name; reading imports the plug-ins where they matter."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str, entry: T) -> T:
        """Add an entry and return it; UserError if the name is taken or malformed."""
        self.check_name(name)
        if name in self._entries:
            raise UserError(f"two {self.kind}s are named {name}; rename the one of your plug-in")
        self._entries[name] = entry
        return entry

    def check_name(self, name: str) -> None:
        """Raise a UserError for a name that cannot be that of a setting, a command and a folder."""
        if not NAME.fullmatch(name):
            raise UserError(f"{self.kind} {name!r}: a name has lower-case letters, digits and _; rename it")

    def __getitem__(self, name: str) -> T:
        """Return an entry; the plug-ins are imported only for a name that is not built in.

        Raises:
            UserError: there is none of this name.
        """
        if name not in self._entries:
            load_plugins()
        if name not in self._entries:
            remedy = f"choose from {', '.join(self)}" if self._entries else "install the plug-in that adds it"
            raise UserError(f"there is no {self.kind} {name!r}; {remedy}")
        return self._entries[name]

    def known(self, name: str) -> str:
        """Return a name that is a setting; ValueError if there is none of this name."""
        try:
            self[name]
        except UserError as error:
            raise ValueError(str(error)) from error
        return name

    def __iter__(self) -> Iterator[str]:
        """Names, the built-in ones first, each group in the order of registration."""
        load_plugins()
        return iter(list(self._entries))

    def items(self) -> list[tuple[str, T]]:
        """Names and entries, in the order of the names of `iter`."""
        load_plugins()
        return list(self._entries.items())


def distributions_of(function: Callable[..., object]) -> tuple[str, ...]:
    """Names of the distributions with plug-ins that a function's package belongs to; empty for a built-in one."""
    package = function.__module__.partition(".")[0]
    points = importlib.metadata.entry_points(group=GROUP)
    return tuple(sorted({p.dist.name for p in points if p.dist and p.module.partition(".")[0] == package}))


@cache
def load_plugins() -> dict[str, str]:
    """Import the modules of all installed plug-ins, sorted by the names of their entry points.

    Returns:
        Version of each distribution that has a plug-in, for fingerprints of cached steps.

    Raises:
        UserError: a plug-in cannot be imported.
    """
    versions: dict[str, str] = {}
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        name = point.dist.name if point.dist else point.name
        try:
            importlib.import_module(point.module)
        except UserError as error:
            raise UserError(f"plug-in {name}: {error}") from error
        except Exception as error:  # code of others, which may fail in any way
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"plug-in {name} cannot be imported ({reason}); repair or uninstall it") from error
        versions[name] = point.dist.version if point.dist else ""
    return dict(sorted(versions.items()))


def load(name: str) -> Any:
    """Import the class or function that the specification of an extension names as "module:name".

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # code of others, which may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"cannot import {name}, which a model family or an objective names ({reason}); correct the name, or the "
            "module"
        ) from error
