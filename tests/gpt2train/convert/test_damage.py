"""Damaged and malicious model folders: each command ends with one line that names the fault."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpt2train.cli import app, run_command
from gpt2train.convert.megatron_core_write import Target, write_megatron_core
from gpt2train.data.tokenizer import save_tokenizer
from gpt2train.model.shape import Shape
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.convert.test_huggingface import make_model, weights_of
from tests.gpt2train.convert.test_megatron import source
from tests.gpt2train.data.test_tokenizer import small_tables

VALUES: tuple[Any, ...] = (None, True, -1, 0, 1, 3, 10**9, 10**30, 1.5, float("nan"), "x", "", [], [1], {}, {"a": 1})
SHAPE = Shape(len(small_tables()[0]), 1, 2, 8, 16)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models as `hf`, `meg`, `tp2`, `ck`, `torch` and `torch_dist`, of which the last two have an optimizer; the
    tokenizer of the first in `bpe`; passages in `set.jsonl`."""
    root = tmp_path_factory.mktemp("sources")
    (root / "bpe").mkdir()
    save_tokenizer(root / "bpe", *small_tables())
    write_model(root / "hf", weights_of(make_model(SHAPE)), SHAPE, root / "bpe")
    for target, *flags in (("meg", "megatron"), ("tp2", "megatron", "--tp", "2"), ("ck", "gpt2train")):
        assert run_command(app, ["convert", str(root / "hf"), str(root / target), "--to", *flags]) == 0
    for form in ("torch", "torch_dist"):
        write_megatron_core(root / form, *source(Shape(20, 2, 2, 8, 4)), form, Target(2, 1))  # type: ignore[arg-type]
    (root / "set.jsonl").write_text('{"text": "a b c"}\n')
    return root


def commands(kind: str, root: Path, model: Path, out: Path) -> list[list[str]]:
    if kind.startswith("torch"):
        return [["convert", str(model), str(out / "m"), "--to", "gpt2train"]]
    bpe = ["--tokenizer", str(root / "bpe")]
    convert = ["convert", str(model), str(out / "m"), "--to"]
    found = [[*convert, to, *bpe] for to in ("huggingface", "megatron", "gpt2train")] + [[*convert, "huggingface"]]
    if kind == "ck":
        found.append(["merge", str(model), "--output", str(out / "m")])
    if kind == "hf":
        found.append(["generate", "--model", str(model), "--prompt", "a", "--max-new-tokens", "2"])
    if kind in ("hf", "ck"):
        score = ["--data", str(root / "set.jsonl"), "--output", str(out / "s.json")]
        found.append(["evaluate", "lambada", "--model", str(model), *score])
    return found


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inner)[:40]:
        yield from places(item, (*place, key))


def damaged_json(data: bytes, rng: random.Random) -> bytes:
    tree = json.loads(data)
    *path, last = rng.choice([place for place in places(tree) if place])
    inner = tree
    for key in path:
        inner = inner[key]
    if isinstance(inner, dict) and rng.random() < 0.3:
        del inner[last]
    else:
        inner[last] = rng.choice(VALUES)
    return json.dumps(tree).encode()


def damage(file: Path, rng: random.Random) -> str:
    """Damage a file; what was done, for the message of a failing test."""
    data = file.read_bytes()
    at = rng.randrange(len(data))
    kind = rng.choice(["empty", "short", "bit", "noise", "gone", "folder", "loop", "value", "value", "value"])
    if kind in ("gone", "folder", "loop"):
        file.unlink()
        file.mkdir() if kind == "folder" else file.symlink_to("loop") if kind == "loop" else None
        return kind
    if kind == "value" and file.suffix == ".safetensors":
        size = int.from_bytes(data[:8], "little")
        head = damaged_json(data[8 : 8 + size], rng)
        data = len(head).to_bytes(8, "little") + head + data[8 + size :]
    elif kind == "value" and file.suffix == ".json":
        data = damaged_json(data, rng)
    else:
        flipped = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        data = {"empty": b"", "short": data[:at], "noise": rng.randbytes(60)}.get(kind, flipped)
    file.write_bytes(data)
    return kind


@pytest.mark.parametrize("seed", [*range(50), *(pytest.param(one, marks=pytest.mark.slow) for one in range(50, 150))])
def test_a_damaged_folder_is_one_error_line(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    rng = random.Random(seed)
    kind = rng.choice(["hf", "hf", "meg", "tp2", "ck", "torch", "torch_dist"])
    model = tmp_path / "model"
    shutil.copytree(sources / kind, model)
    file = rng.choice(sorted(path for path in model.rglob("*") if path.is_file()))
    done = damage(file, rng)
    command = rng.choice(commands(kind, sources, model, tmp_path))
    code = run_command(app, command)
    error = capsys.readouterr().err
    what = f"seed {seed}: {file.name} {done}, {command[0]}: {code} {error}"
    # A damaged checkpoint of a run is a failure (1) that names itself; all else is bad input (2).
    assert code in ((0, 1, 2) if kind == "ck" else (0, 2)), what
    assert "Error:" not in error and error.count("\n") == (code != 0), what


def post_processor(token: str, ids: dict[str, int]) -> dict[str, Any]:
    known = {one: {"id": one, "ids": [number], "tokens": [one]} for one, number in ids.items()}
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}}


DEEP, END = "[" * 100_000, "<|endoftext|>"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        # Sizes and nesting that would exhaust memory.
        ("config.json", {"n_layer": 10**9}, "config.json"),
        ("config.json", {"n_embd": 10**30}, "config.json"),
        ("config.json", {"vocab_size": 1.5}, "config.json"),
        ("config.json", {"n_head": True}, "config.json"),
        ("config.json", DEEP, "config.json"),
        (INDEX, DEEP, INDEX),
        ("tokenizer.json", DEEP, "tokenizer.json"),
        # What the libraries do not check.
        (INDEX, {"weight_map": {"ln_f.weight": "\ud800"}}, "is damaged"),
        ("tokenizer.json", post_processor(END, {}), f"does not describe its token '{END}'"),
        ("tokenizer.json", post_processor(END, {END: 10**6}), "has the id 1000000"),
        ("tokenizer.json", {"model": {"type": "WordLevel", "vocab": {"</s>": 0}, "unk_token": "x"}}, "cannot encode"),
    ],
)
def test_known_damage_is_refused_in_one_line(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Any, message: str
) -> None:
    shutil.copytree(sources / "hf", tmp_path / "m")
    file = tmp_path / "m" / name
    if name == INDEX:
        (tmp_path / "m/model.safetensors").unlink()
    if isinstance(content, dict):
        content = json.dumps((json.loads(file.read_text()) if file.exists() else {}) | content)
    file.write_text(content)
    assert run_command(app, ["generate", "--model", str(tmp_path / "m"), "--prompt", "a"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
