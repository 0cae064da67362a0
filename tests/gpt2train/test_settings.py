"""Files of settings, and nested settings by dotted names."""

from pathlib import Path

from gpt2train.settings import flatten, read_toml


def test_nested_names_are_joined_by_dots_in_their_order() -> None:
    nested = {"b": {"y": 1, "x": {"deep": [2, {"kept": 3}]}}, "a": None, "none": {}, 7: "number"}
    flat = flatten(nested)  # type: ignore[arg-type]  # files of others have other keys than texts
    assert list(flat.items()) == [("b.y", 1), ("b.x.deep", [2, {"kept": 3}]), ("a", None), ("7", "number")]


def test_a_file_of_an_editor_of_windows(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes('\ufeffabout = "é"\r\n[train]\r\nsteps = 3\r\n'.encode())
    assert read_toml(tmp_path / "a.toml") == {"about": "é", "train": {"steps": 3}}
