"""The list of tests outside the inner loop: existing entries, sorted, none superfluous."""

import re

import pytest

from tests.inner_loop import LISTED, NOT_UNIT, ROOT


@pytest.mark.parametrize("entry", NOT_UNIT)
def test_entries_exist_and_are_needed(entry: str) -> None:
    name, _, function = entry.partition("::")
    assert not function or re.search(rf"^def {function}\(", (ROOT / name).read_text(), re.MULTILINE)
    assert (ROOT / name).is_file() and not (function and name in NOT_UNIT)


def test_entries_are_sorted_and_listed_once() -> None:
    places = re.findall(r"^(\S+):", LISTED, re.MULTILINE)
    assert places == sorted(set(places)) and len(NOT_UNIT) == len(set(NOT_UNIT)) > 100
