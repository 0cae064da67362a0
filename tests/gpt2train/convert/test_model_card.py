"""The model card of a model folder: front matter that hubs read, facts of the run, no clock and no path."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from gpt2train.cli import app, run_command
from gpt2train.config import ModelSettings
from gpt2train.convert.merge import merge
from gpt2train.convert.model_card import CardFacts, model_card
from gpt2train.convert.settings import MergeSettings
from gpt2train.model.causal_lm import Shape, build_model
from gpt2train.settings import build
from gpt2train.store.manifest import Folder, Manifest, Outcome
from gpt2train.store.run_folder import MANIFEST, MANIFEST_HASH
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.serve.local_server import write_tokenizer
from tests.trained_run import TrainedRun

SHAPE = Shape(50257, 12, 12, 768, 1024)


def front_matter(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


def write_manifest(root: Path, folder: str, step: str, inputs: dict[str, str], rows: int, **parameters: Any) -> str:
    files = [root / "tokens/train" / name for name in ("tokens.bin", "tokens.idx")]
    made = Folder(root / "tokens")
    outputs = tuple(made.record(f"train/{file.name}") for file in files if step == "tokenize")
    names = {"step": step, "fingerprint": f"f-{folder}", "content": "c", "folder": folder}
    outcome = Outcome(seen=rows + 1, kept=rows, outputs=outputs)
    manifest = Manifest(**names, version=1, inputs=inputs, outcome=outcome, parameters=parameters, versions={})
    Folder(root / folder).write_bytes("_manifest.json", manifest.model_dump_json().encode())
    return f"f-{folder}:c"


@pytest.fixture
def root(trained_run: TrainedRun, tmp_path: Path) -> Path:
    target = tmp_path / "out"
    shutil.copytree(trained_run.root, target)
    config = target / "runs/small/config.toml"
    config.write_text(config.read_text().replace(str(trained_run.root), str(target)))
    return target


def card_of(root: Path, name: str = "m") -> str:
    merge(root / "runs/small", root / name, root / "tokenizer")
    return (root / name / "README.md").read_text()


def test_the_card_has_front_matter_and_limits() -> None:
    card = model_card(
        SHAPE, 124_439_808, "bfloat16", "byte-level BPE", CardFacts(languages=("de", "en"), license="cc-by-4.0")
    )
    front = front_matter(card)
    assert front["license"] == "cc-by-4.0" and front["language"] == ["de", "en"]
    assert front["library_name"] == "transformers" and "gpt2" in front["tags"]
    assert "| parameters | 124,439,808 |" in card and "1,024 tokens at a time" in card and "bfloat16" in card
    assert "| vocabulary | 50,257 tokens, byte-level BPE |" in card
    bare = front_matter(model_card(SHAPE, 1, "float32", "WordPiece", CardFacts()))
    assert bare["license"] == "unknown" and "language" not in bare


@pytest.mark.parametrize(
    ("family", "options", "model_type", "title"),
    [
        ("gpt2", {}, "gpt2", "GPT-2"),
        ("llama", {}, "llama", "Llama"),
        ("llama", {"qk_norm": True}, "qwen3", "Qwen3"),
        ("llama", {"attention_bias": "qkv"}, None, None),  # Qwen2, or Llama where the tokenizer is not Qwen's
        ("llama", {"logit_softcap": 15.0}, "gpt2train_llama", "Llama"),
        ("t5", {"start_id": 256}, "t5", "T5"),
    ],
)
def test_the_card_names_what_the_config_says(
    family: str, options: dict[str, Any], model_type: str | None, title: str | None, tmp_path: Path
) -> None:
    settings = {"layers": 2, "heads": 2, "hidden": 32, "context": 16, "family": family, "options": options}
    shape = build(ModelSettings, settings).shape(257)
    write_model(tmp_path / "m", dict(build_model(shape).state_dict()), shape, write_tokenizer(tmp_path))
    config, card = json.loads((tmp_path / "m/config.json").read_text()), (tmp_path / "m/README.md").read_text()
    assert front_matter(card)["tags"][0] == config["model_type"] == (model_type or config["model_type"])
    assert f"# {title or config['model_type'].title()} trained with gpt2train" in card


@pytest.mark.slow
def test_the_card_of_a_run_has_its_steps_tokens_and_losses(root: Path) -> None:
    card = card_of(root)
    last = json.loads((root / "runs/small/metrics.jsonl").read_text().splitlines()[-1])
    assert "| steps | 2 |" in card and "| tokens read | 256 |" in card
    assert f"| training loss of the last step | {last['loss']:.4f} nats per token |" in card
    assert "The training data is not known" in card
    assert str(root) not in card and not re.search(r"20[2-9]\d", card)
    assert card_of(root, "again") == card
    (root / "runs/small/metrics.jsonl").write_text("no JSON\n")
    assert "| steps | 2 |" in card_of(root, "unreadable") and "initial weights" not in card
    (checkpoint,) = (root / "runs/small/checkpoints").glob("step-*2")
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["config"]["checkpoints"]["init_from"] = "/secret/llama"
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    (checkpoint / MANIFEST_HASH).unlink()
    tuned = card_of(root, "tuned")
    assert "| initial weights | those of another model" in tuned and "secret" not in tuned


def test_the_data_steps_are_those_that_led_to_the_tokens(root: Path) -> None:
    """Other work in the same output folder is passed over, damaged manifests too."""
    clean = write_manifest(root, "clean", "clean", {}, 70, language={"keep": ["en", "de"]})
    shuffled = write_manifest(root, "shuffled", "shuffle", {"documents": clean}, 60)
    write_manifest(root, "tokens", "tokenize", {"documents": shuffled, "tokenizer": "x:y"}, 60)
    write_manifest(root, "dedup", "dedup", {"documents": "of:other-work"}, 5)
    (root / "pages").mkdir()
    (root / "pages/_manifest.json").write_text('{"step": [')
    card = card_of(root)
    assert "| step | in | kept |\n| --- | --- | --- |\n| clean | 71 | 70 |\n| shuffle | 61 | 60 |\n\n" in card
    assert front_matter(card)["language"] == ["de", "en"]


def test_tokens_made_elsewhere_have_no_steps_of_a_neighbour(root: Path) -> None:
    """The token files lie beside the outputs of a data flow that did not make them."""
    clean = write_manifest(root, "clean", "clean", {}, 70, language={"keep": ["en"]})
    write_manifest(root, "tokens", "tokenize", {"documents": clean}, 60)
    config = root / "runs/small/config.toml"
    shutil.copytree(root / "tokens", root / "made/tokens")
    (root / "made/tokens/train/tokens.bin").write_bytes(b"other tokens")
    for place in ("made/tokens/a", "tokens/mine", "a", "made/tokens/train/tokens"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        text = config.read_text()
        changed = re.sub(r'(?m)^train = ".*"$', f'train = "{root / place}"', text)
        assert changed != text
        config.write_text(changed)
        assert "The training data is not known" in card_of(root, f"m-{place.replace('/', '-')}")


def test_the_licence_is_a_setting(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--output", str(root / "m"), "--tokenizer", str(root / "tokenizer")]
    assert run_command(app, ["merge", str(root / "runs/small"), *place, "--license", "apache-2.0"]) == 0
    assert front_matter((root / "m/README.md").read_text())["license"] == "apache-2.0"
    for wrong in ("MIT License", "mit\ntags: x", ""):
        with pytest.raises(ValidationError):
            MergeSettings(license=wrong)
    assert run_command(app, ["merge", str(root / "runs/small"), *place, "--license", "a b"]) == 2
    assert "--license" in capsys.readouterr().err
