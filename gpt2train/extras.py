"""Extras of the package: one error for everything whose packages are missing, with the command that installs them.

The engine needs only the dependencies of `pyproject.toml`; the data steps, the server and single features have extras.
"""

import importlib.metadata
import re
from functools import cache

from gpt2train.errors import UserError

PIPELINE, SERVE = "pipeline", "serve"


def needs_extra(what: str, extra: str) -> UserError:
    """Return the error of a command, setting or file whose extra is not installed."""
    return UserError(f"{what} needs the extra \"{extra}\": pip install 'gpt2train[{extra}]'")


def check_extra(what: str, extra: str) -> None:
    """Raise a UserError unless all packages of an extra are installed, before work that finds out at its end."""
    if not is_installed(extra):
        raise needs_extra(what, extra)


@cache
def is_installed(extra: str) -> bool:
    """Return True if all packages of an extra are installed, or if the package itself is not, as in a bare checkout."""
    return all(version_of(name) for name, of in requirements() if of == extra)


def requirements() -> list[tuple[str, str]]:
    """Return the packages that this one names, each with its extra or an empty name; none in a bare checkout.

    Those that only some versions of Python need are left out.
    """
    try:
        found = importlib.metadata.requires("gpt2train") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    matches = [re.fullmatch(r"([\w.-]+)[^;]*(?:; *extra == ['\"]([\w-]+)['\"])?", one) for one in found]
    return [(match[1], match[2] or "") for match in matches if match]


def version_of(distribution: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
