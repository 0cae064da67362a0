"""Nested settings by dotted names."""

from gpt2train.settings import flatten


def test_nested_names_are_joined_by_dots_in_their_order() -> None:
    nested = {"b": {"y": 1, "x": {"deep": [2, {"kept": 3}]}}, "a": None, "none": {}, 7: "number"}
    flat = flatten(nested)  # type: ignore[arg-type]  # files of others have other keys than texts
    assert list(flat.items()) == [("b.y", 1), ("b.x.deep", [2, {"kept": 3}]), ("a", None), ("7", "number")]
