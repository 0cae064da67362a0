"""Pickles of others: one that runs code when it is loaded, and those of an older Python."""

import os
from enum import Enum
from pathlib import Path
from typing import Any

import pytest


def as_python_3_11_2(patch: pytest.MonkeyPatch) -> None:
    """Pickle members of enumerations as Python 3.11.0 to 3.11.3 do, Debian 12's among them."""
    patch.setattr(Enum, "__reduce_ex__", lambda member, protocol: (getattr, (type(member), member.name)))


class CodeOnLoad:
    """Makes the folder `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)
