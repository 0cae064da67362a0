"""The steps, settings and help pages that users and finished outputs rely on are the recorded ones."""

import pytest

from tests.recorded import RUNS, WITH_PLUGINS, differences, items, items_with_plugins

REMEDY = "; if a change is meant: python -m tests.recorded --write"


@pytest.mark.slow  # 20 s of a core, most of them imports of each command
def test_steps_settings_and_help_pages_are_the_recorded_ones() -> None:
    found = items([name for name in RUNS if name not in WITH_PLUGINS]) | items_with_plugins()
    assert len(found) > 200
    assert not differences(found), REMEDY
