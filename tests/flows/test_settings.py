"""Layers of settings: defaults < preset < file < flags, and what the demo changes."""

from pathlib import Path
from typing import Any

import pytest

from flows.settings import DataprepSettings, PipelineSettings, PretrainSettings, demo_layer, resolve
from flows.ui.flags import dump
from gpt2train.errors import UserError


def test_flags_win_over_the_file_which_wins_over_the_preset(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('preset = "117m"\n[train]\nsteps = 7\n[train.schedule]\nwarmup = 2\n[dedup]\nthreshold = 0.7\n')
    settings = resolve(PipelineSettings, str(config), {"urls": ["a.txt"], "dedup": {"threshold": 0.6}})
    assert settings.dedup.threshold == 0.6
    assert settings.train.steps == 7
    assert settings.train.model.layers == 12


def test_the_demo_preset_applies_to_the_demo_only() -> None:
    assert resolve(PipelineSettings).download.allow_private == ("127.0.0.0/8",)
    assert resolve(PipelineSettings, flags={"urls": ["a.txt"]}).download.allow_private == ()


def test_the_demo_preset_serves_every_flow() -> None:
    demo = demo_layer()
    assert resolve(DataprepSettings).blacklist.shard_rows == demo["blacklist"]["shard_rows"]
    whole = resolve(PipelineSettings)
    assert whole.preset == demo["preset"]
    # `flows.pretrain --preset` of the demo's trains the same on the tokens of `flows.dataprep`.
    assert whole.tokenizer == resolve(DataprepSettings).tokenizer
    assert whole.train == resolve(PretrainSettings, flags={"preset": demo["preset"]}).train


def test_one_file_serves_all_flows_and_mistakes_in_it_are_found(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('urls = ["a.txt"]\npreset = "117m"\n[evaluate]\nmax_documents = 3\n')
    assert resolve(DataprepSettings, str(config)).urls == ("a.txt",)
    assert resolve(PretrainSettings, str(config)).preset == "117m"
    config.write_text("[evalute]\nmax_documents = 3\n")
    with pytest.raises(UserError, match="unknown setting 'evalute'"):
        resolve(DataprepSettings, str(config))


def test_a_preset_is_a_layer_of_its_own() -> None:
    settings = resolve(PretrainSettings, flags={"preset": "345m", "train": {"steps": 9000}})
    assert (settings.train.model.layers, settings.train.model.hidden, settings.train.steps) == (24, 1024, 9000)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"preset": "117m"}, ("gpt2", None)),
        ({"preset": "megatron-345m", "tokenizer": {"folder": "bpe"}}, ("gpt2", "bpe")),
        ({"preset": "117m", "tokenizer": {"name": "train"}}, ("train", 4096)),
        ({"preset": "117m", "tokenizer": {"vocab_size": 8000}}, ("train", 8000)),
        ({"preset": "117m", "tokenizer": {"name": "folder", "folder": "mine"}}, ("folder", "mine")),
        ({"preset": "cpm-gpt2"}, ("train", 30_000)),
        ({"preset": "t5-cpm"}, ("train", 30_191)),
        ({"preset": "tiny"}, ("train", 4096)),
        ({}, ("train", 4096)),
    ],
)
def test_a_preset_has_gpt_2_s_vocabulary_unless_another_is_chosen(
    flags: dict[str, Any], expected: tuple[str, Any]
) -> None:
    found = resolve(PipelineSettings, flags={"documents": ["a.txt"], **flags}).tokenizer
    assert (found.name, found.vocab_size if found.name == "train" else found.folder) == expected


def test_the_data_flow_takes_the_vocabulary_of_the_preset_in_its_file(tmp_path: Path) -> None:
    assert resolve(DataprepSettings, flags={"documents": ["a.txt"]}).tokenizer.name == "train"
    (tmp_path / "mine.toml").write_text('documents = ["a.txt"]\npreset = "117m"\n')
    assert resolve(DataprepSettings, str(tmp_path / "mine.toml")).tokenizer.name == "gpt2"


def test_a_recipe_takes_the_place_of_a_preset() -> None:
    flags = {"recipe": "modern", "depth": 12, "train": {"seed": 7}}
    settings = resolve(PretrainSettings, flags=flags)
    assert settings.preset == "modern-12"
    assert settings.train == resolve(PretrainSettings, flags={"preset": "modern-12", "train": {"seed": 7}}).train
    small = resolve(PipelineSettings, flags={"documents": ["a.txt"], "recipe": "modern", "budget": "1e15"})
    assert (small.preset, small.train.model.layers, small.tokenizer.name) == ("modern-2", 2, "train")
    hours = resolve(PretrainSettings, flags={"recipe": "modern", "budget": "8h", "launch": {"processes": 1}})
    assert hours.train.model.family == "llama" and hours.train.steps > 1000
    with pytest.raises(UserError, match="leave one out"):
        resolve(PretrainSettings, flags={"preset": "345m", **flags})
    for found in (settings, small, hours):  # a command passes them to the flow, which resolves them again
        assert resolve(type(found), flags=dump(found, "json")) == found


def test_an_unknown_key_is_refused_with_its_full_path() -> None:
    with pytest.raises(UserError, match=r"unknown setting 'train.model.layer'; did you mean 'train.model.layers'"):
        resolve(PretrainSettings, flags={"train": {"model": {"layer": 3}}})


def test_every_field_has_a_help_text() -> None:
    """The same text is the flag's help and the hint in the form of the Prefect UI."""
    missing = []

    def check_fields(model: type, path: str) -> None:
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if not field.description:
                missing.append(f"{path}.{name}")
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                check_fields(field.annotation, f"{path}.{name}")

    check_fields(PipelineSettings, "pipeline")
    assert missing == []
