"""Files of settings, and nested settings by dotted names."""

from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import UserError
from gpt2train.settings import PositiveNumber, Settings, build, flatten, read_toml


class Inner(Settings):
    steps: PositiveNumber = 1


class Outer(Settings):
    steps: int = 1
    rate: float = 0.5
    optional: PositiveNumber | None = None
    either: int | str = 1
    pair: tuple[float, float] = (0.9, 0.95)
    inner: Inner = Inner()
    on: bool = False
    any_of: bool | int = 3
    options: dict[str, Any] = {}
    switch: bool | str = "auto"


def test_nested_names_are_joined_by_dots_in_their_order() -> None:
    nested = {"b": {"y": 1, "x": {"deep": [2, {"kept": 3}]}}, "a": None, "none": {}, 7: "number"}
    flat = flatten(nested)  # type: ignore[arg-type]  # files of others have other keys than texts
    assert list(flat.items()) == [("b.y", 1), ("b.x.deep", [2, {"kept": 3}]), ("a", None), ("7", "number")]


def test_a_file_of_an_editor_of_windows(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes('\ufeffabout = "é"\r\n[train]\r\nsteps = 3\r\n'.encode())
    assert read_toml(tmp_path / "a.toml") == {"about": "é", "train": {"steps": 3}}
    (tmp_path / "b.toml").write_text("steps = 3\n", encoding="utf-16")  # what > writes in PowerShell 5
    with pytest.raises(UserError, match=r"b\.toml: it is UTF-16, not UTF-8; convert it: iconv"):
        read_toml(tmp_path / "b.toml")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"steps": True}, "steps"),
        ({"rate": False}, "rate"),
        ({"either": True}, "either"),
        ({"pair": [0.9, True]}, "pair"),
        ({"inner": {"steps": True}}, "inner.steps"),
        ({"optional": True}, "optional"),
    ],
)
def test_a_boolean_is_no_number(given: dict[str, object], place: str) -> None:
    with pytest.raises(UserError, match=rf"^run.toml: {place}: input should be a number, not a boolean"):
        build(Outer, given, source="run.toml")


def test_a_boolean_is_kept_where_a_setting_takes_one() -> None:
    built = build(Outer, {"on": True, "any_of": True, "options": {"qk_norm": True}, "switch": False})
    assert (built.on, built.any_of, built.options, built.switch) == (True, True, {"qk_norm": True}, False)
