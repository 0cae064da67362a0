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
    """Check that all packages of an extra are installed, before work that would find out at its end.

    Raises:
        UserError: one is not.
    """
    if not is_installed(extra):
        raise needs_extra(what, extra)


@cache
def is_installed(extra: str) -> bool:
    """Return True if all packages of an extra are installed, or if the package itself is not, as in a bare checkout."""
    try:
        required = importlib.metadata.requires("gpt2train") or []
        names = [re.match(r"[\w.-]+", one) for one in required if re.search(rf"; *extra == ['\"]{extra}['\"]$", one)]
    except importlib.metadata.PackageNotFoundError:
        return True
    return all(_has(name[0]) for name in names if name)


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
