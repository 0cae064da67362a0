"""The model family of docs/develop/add-a-model.md, installed outside of the repository."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt2train.config import RunConfig, to_toml
from tests.gpt2train.jobs import VOCAB, curve, finish, make, start, start_alone
from tests.gpt2train.parallel.small_model_folder import write_tokenizer
from tests.tasks.plugin_page import ROOT, files_of, installed, installed_for_all_processes

pytestmark = pytest.mark.slow

__all__ = ["installed", "installed_for_all_processes"]

PAGE = "add-a-model.md"
TRAIN_RUNS = ROOT / "tests/gpt2train/parity/train_runs.py"
FAMILY = '\nfamily = "rotary"\noptions = { kv_heads = 2, inner = 48 }\n'
WHOLE = {"tp": 2, "sequence_parallel": False, "activation_checkpointing": "selective"}
PP_ZERO, HYBRID = {"pp": 2, "zero": 1}, {"zero": 3, "dp_shard_degree": 2, "cpu_offload": True}
# Each row is one job: processes, and the layouts that it trains one after the other.
LAYOUTS: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {
    "model": (2, {"tp": {"tp": 2}, "pp": {"pp": 2}}),
    "two": (2, {"tp-whole-sequences": WHOLE, "pp": {"pp": 2}, "zero": {"zero": 3, "activation_checkpointing": "full"}}),
    "four": (4, {"tp-pp": {"tp": 2, "pp": 2}, "tp-zero": {"tp": 2, "zero": 3}, "pp-zero": PP_ZERO, "hybrid": HYBRID}),
}
# transformers' Qwen3 has the same architecture. Prints the largest difference of a logit and the logits' deviation, and
# checks that a decoding step with the cache gives the logits of a whole forward pass.
AGAINST_QWEN3 = """
import sys, json, torch
from gpt2train.convert.huggingface import read_model
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.model.families import sizes
from transformers import Qwen3Config, Qwen3ForCausalLM
ours = read_model(sys.argv[1])
assert [(name, tuple(p.shape)) for name, p in ours.named_parameters()] == list(sizes(ours.shape).items())
decoder, texts = LocalDecoder(ours, rows=2), [[5, 6, 7], [9]]
logits = decoder.add(texts)
for _ in range(6):
    new = logits.argmax(1).tolist()
    texts, logits = [[*text, token] for text, token in zip(texts, new)], decoder.step(new)
    whole = torch.stack([decoder.logits(text)[-1] for text in texts])
    assert torch.allclose(logits, whole, atol=1e-5), (logits - whole).abs().max()
shape, options = ours.shape, dict(ours.shape.options)
config = Qwen3Config(
    vocab_size=shape.padded_vocab, hidden_size=shape.hidden, intermediate_size=options["inner"],
    num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=options["kv_heads"],
    head_dim=shape.head_dim, max_position_embeddings=shape.context, rms_norm_eps=1e-5, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": options["theta"]}, attention_bias=False,
)
names = {"wte.": "model.embed_tokens.", "ln_f.": "model.norm.", "blocks.": "model.layers.", "ln_1.": "input_layernorm.",
         "ln_2.": "post_attention_layernorm.", "attn.q.": "self_attn.q_proj.", "attn.k.": "self_attn.k_proj.",
         "attn.v.": "self_attn.v_proj.", "attn.proj.": "self_attn.o_proj.", "attn.q_norm.": "self_attn.q_norm.",
         "attn.k_norm.": "self_attn.k_norm.", "gate.": "mlp.gate_proj.", "up.": "mlp.up_proj.",
         "down.": "mlp.down_proj."}
def theirs(name):
    for a, b in names.items():
        name = name.replace(a, b)
    return name
peer = Qwen3ForCausalLM(config).eval()
peer.load_state_dict({theirs(name): value for name, value in ours.state_dict().items()})
tokens = torch.randint(shape.vocab, (3, shape.context), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    difference = (ours(tokens) - peer(tokens).logits).abs().max().item()
print(json.dumps([difference, ours(tokens).std().item()]))
"""


def write(config: RunConfig) -> str:
    """Write the settings of a run of the family, which this process does not know."""
    path = Path(f"{config.output}.toml")
    path.write_text(to_toml(config).replace("[model]\n", f"[model]{FAMILY}"))
    return str(path)


def run_of(tokens: Path, output: Path, parallel: dict[str, Any]) -> RunConfig:
    model = {"layers": 2, "heads": 4}
    return make(tokens, output, model=model, batch={"micro_batch": 1, "global_batch": 16}, parallel=parallel)


def call(*command: object) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def reference(tokens: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = run_of(tokens, tmp_path_factory.mktemp("one") / "run", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{installed}")
        code, _, err = finish(start_alone(write(config)))
    assert code == 0, err
    return Path(config.output)


@pytest.fixture(scope="module")
def model(reference: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("merged")
    write_tokenizer(folder / "tokenizer", VOCAB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{installed}")
        merge = ("-m", "gpt2train", "merge", reference, "--output", folder / "model")
        done = call(*merge, "--tokenizer", folder / "tokenizer")
    assert done.returncode == 0, done.stderr
    return folder / "model"


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", ["model", "two", "four"])
def test_all_layouts_have_the_losses_of_one_process(job: str, tokens: Path, reference: Path, tmp_path: Path) -> None:
    processes, layouts = LAYOUTS[job]
    runs = [run_of(tokens, tmp_path / name, parallel) for name, parallel in layouts.items()]
    code, _, err = finish(start(str(TRAIN_RUNS), *map(write, runs), processes=processes))
    assert code == 0, err
    expected = np.array(curve(reference))
    assert expected[-1] < expected[0] - 0.3  # it learns
    for run in runs:
        refusal = Path(run.output).with_suffix(".error")
        assert not refusal.exists(), refusal.read_text()
        for key, bound in (("loss", 1e-5), ("grad_norm", 1e-5)):
            ours, theirs = np.array(curve(run.output, key)), np.array(curve(reference, key))
            assert np.max(np.abs(ours / theirs - 1)) <= bound, (run.output, key)


def test_merged_model_has_the_logits_of_qwen3(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    assert config["model_type"] == "rotary" and config["family_options"]["kv_heads"] == 2
    card = (model / "README.md").read_text()
    assert "# rotary trained with gpt2train" in card and "transformers" not in card
    done = call("-c", AGAINST_QWEN3, model)
    assert done.returncode == 0, done.stderr
    difference, scale = json.loads(done.stdout)
    assert difference <= 1e-5 * scale and scale > 0.1


@pytest.mark.exhaustive
def test_distributed_model_generates_the_same(model: Path) -> None:
    generate = ("-m", "gpt2train", "generate", "--model", model, "--prompt", "th", "--temperature", "0", "--json")
    whole = call(*generate, "--max-new-tokens", "8")
    for flags in (("--tp", "2"), ("--pp", "2")):
        split = call(*generate, "--max-new-tokens", "8", *flags)
        assert (split.returncode, split.stdout) == (0, whole.stdout), split.stderr


@pytest.mark.exhaustive
def test_other_family_and_other_format_are_refused(tokens: Path, reference: Path, model: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "run")
    config = run_of(tokens, tmp_path / "run", {})
    (tmp_path / "gpt2.toml").write_text(to_toml(config))
    code, _, err = finish(start_alone(str(tmp_path / "gpt2.toml")))
    assert code == 2 and "holds a run with another model.family (rotary there, gpt2 now)" in err
    done = call("-m", "gpt2train", "convert", model, tmp_path / "megatron", "--to", "megatron")
    assert done.returncode == 2 and "gpt2 only, not rotary" in done.stderr and done.stderr.count("\n") == 1
    for wrong, message in (
        (FAMILY.replace("kv_heads = 2", "kv_heads = 3"), "kv_heads 3 does not divide heads 4"),
        (FAMILY.replace("kv_heads", "kvheads"), "unknown setting 'kvheads'; did you mean 'kv_heads'?"),
        (FAMILY.replace("rotary", "rotar"), "there is no model family 'rotar'; choose from gpt2, llama, t5, rotary"),
    ):
        plain = (tmp_path / "gpt2.toml").read_text()
        (tmp_path / "wrong.toml").write_text(plain.replace("[model]\n", f"[model]{wrong}"))
        # Without torch, which a refusal does not wait for.
        read = f"from gpt2train.config import read_run_config; read_run_config({str(tmp_path / 'wrong.toml')!r})"
        done = call("-c", read)
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 1 and last.startswith("gpt2train.errors.UserError") and message in last


@pytest.mark.exhaustive
def test_commands_of_the_page(tmp_path: Path) -> None:
    rows = [
        {"url": f"http://kept.example/{n}", "text": f"Document {n} says that {n} foxes jump over {n + 1} dogs. " * 9}
        for n in range(60)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rotary.toml").write_text(files_of(PAGE)["rotary.toml"])
    output = tmp_path / "out"
    data = ["--documents", tmp_path / "texts.jsonl", "--output", output, "--workers", "1"]
    data += ["--clean.min-tokens", "5", "--clean.language.keep", "any", "--clean.split.test", "0"]
    done = call("-m", "flows.dataprep", *data, "--tokenizer.name", "train", "--tokenizer.vocab-size", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    short = ["--train.steps", "3", "--train.schedule.warmup", "1", "--launch.processes", "1"]
    done = call("-m", "flows.pretrain", "--config", tmp_path / "rotary.toml", "--output", output, *short)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (output / "runs").iterdir()
    assert 'family = "rotary"' in (run / "config.toml").read_text()
    done = call("-m", "gpt2train", "merge", run, "--output", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    done = call("-m", "gpt2train", "generate", "--model", tmp_path / "model", "--prompt", "The first thing")
    assert done.returncode == 0 and done.stdout.startswith("The first thing"), done.stderr
