"""The list of tests outside the inner loop: existing entries, sorted, none superfluous."""

import re

import pytest

from tests.inner_loop import NOT_UNIT, ROOT


@pytest.mark.parametrize("entry", NOT_UNIT)
def test_entries_exist(entry: str) -> None:
    name, _, function = entry.partition("::")
    path = ROOT / name
    assert path.is_dir() if name.endswith("/") else path.is_file()
    assert not function or re.search(rf"^def {function}\(", path.read_text(), re.MULTILINE)


def test_entries_are_sorted_and_needed() -> None:
    assert list(NOT_UNIT) == sorted(set(NOT_UNIT))
    for entry in NOT_UNIT:
        folders = [other for other in NOT_UNIT if other != entry and other.endswith("/") and entry.startswith(other)]
        assert not folders and (("::" not in entry) or entry.partition("::")[0] not in NOT_UNIT)
