"""Merging a checkpoint of any layout into one model folder that has the logits of the trained model.

The layouts of a number of processes share one process group (`logits_before_merge.py`).
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2train.convert.from_weights import write_checkpoint
from gpt2train.convert.merge import merge
from gpt2train.errors import UserError
from gpt2train.model.families import Shape, sizes
from gpt2train.model.lazy_weights import LazyWeights, in_memory
from tests.gpt2train.convert.model_folders import write_tokenizer
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import VOCAB, make, write

MERGING = Path(__file__).parent / "logits_before_merge.py"
SECONDS = 900.0

MODEL = {"layers": 4, "heads": 4}
TWO: dict[str, dict[str, Any]] = {"tp2": {"tp": 2}, "pp2": {"pp": 2}, "dp2-zero3": {"zero": 3}}
FOUR: dict[str, dict[str, Any]] = {
    "tp2-pp2": {"tp": 2, "pp": 2},
    "tp4": {"tp": 4},
    "pp4": {"pp": 4},
    "dp4-zero1": {"zero": 1},
    "dp4-zero3": {"zero": 3},
    "hybrid": {"zero": 3, "dp_shard_degree": 2},
    "offload": {"zero": 2, "cpu_offload": True},
    "tp2-dp2-zero3": {"tp": 2, "zero": 3, "sequence_parallel": False},
}


# Of each layout the merged model's logits and the training model's; the files of models that were not trained; that of
# a trained one.
Merged = tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], set[bytes], bytes]


def merged(
    layouts: dict[str, dict[str, Any]], processes: int, tokens: Path, folder: Path, model: dict[str, Any] = MODEL
) -> Merged:
    transformers = pytest.importorskip("transformers")
    tokenizer = write_tokenizer(folder / "tokenizer", VOCAB)
    short: dict[str, Any] = {"batch": {"micro_batch": 1, "global_batch": 8}, "schedule": {"warmup": 1}, "steps": 2}
    configs = {name: make(tokens, folder / name, model=model, parallel=by, **short) for name, by in layouts.items()}
    run_ranks(MERGING, *map(write, configs.values()), processes=processes, seconds=SECONDS)
    logits, fresh = {}, set()
    for name, config in configs.items():
        merge(folder / name, folder / "models" / name, tokenizer)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "models" / name).eval()
        with torch.no_grad():
            found = theirs(torch.arange(config.model.context).view(1, -1) % VOCAB).logits
        logits[name] = found, torch.load(folder / f"{name}.logits", weights_only=True)
        merge(folder / f"{name}-fresh", folder / "models" / f"{name}-fresh", tokenizer)
        fresh.add((folder / "models" / f"{name}-fresh" / "model.safetensors").read_bytes())
    return logits, fresh, (folder / "models" / name / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layouts", "processes"),
    [pytest.param(TWO, 2, id="two"), pytest.param(FOUR, 4, id="four", marks=pytest.mark.exhaustive)],
)
def test_a_merged_checkpoint_of_any_layout_has_the_logits_of_training(
    layouts: dict[str, dict[str, Any]], processes: int, tokens: Path, tmp_path: Path
) -> None:
    logits, fresh, trained = merged(layouts, processes, tokens, tmp_path)
    for name, (found, expected) in logits.items():
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert logits.keys() == layouts.keys()
    assert len(fresh) == 1  # the same weights are the same bytes, whichever layout they were saved on
    assert trained not in fresh


@pytest.mark.slow
def test_a_split_of_unequal_heads_is_merged_as_any_other(tokens: Path, tmp_path: Path) -> None:
    model = {"heads": 5, "hidden": 40}
    (tmp_path / "split").mkdir()
    (tmp_path / "one").mkdir()
    logits, fresh, _ = merged({"tp2": {"tp": 2}}, 2, tokens, tmp_path / "split", model)
    torch.testing.assert_close(*logits["tp2"], rtol=1e-5, atol=1e-5)
    _, of_one_process, _ = merged({"one": {}}, 1, tokens, tmp_path / "one", model)
    assert fresh == of_one_process


def test_a_run_that_records_no_tokenizer_names_the_one_in_its_folder(tmp_path: Path) -> None:
    shape = Shape(VOCAB, 1, 1, 8, 8)
    weights = in_memory({name: torch.zeros(size) for name, size in sizes(shape).items()})
    write_checkpoint(tmp_path / "run", LazyWeights(shape, weights), None)
    with pytest.raises(UserError, match="does not record its tokenizer; give its folder: --tokenizer DIR"):
        merge(tmp_path / "run", tmp_path / "model")
    folder = write_tokenizer(tmp_path / "run/tokenizer", VOCAB)
    with pytest.raises(UserError, match=f"does not record its tokenizer; give its folder: --tokenizer {folder}"):
        merge(tmp_path / "run", tmp_path / "model")
    merge(tmp_path / "run", tmp_path / "model", folder)


MEASURE = """
import sys, threading, time
from pathlib import Path
import psutil, torch
from gpt2train.convert import merge

folder, dtype = Path(sys.argv[1]), sys.argv[2]
merge.merge(folder / "small", folder / "warm", dtype=dtype)  # what is imported and kept the first time
process, peak, done = psutil.Process(), 0, threading.Event()
def watch():
    global peak
    while not done.is_set():
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.001)
before = process.memory_info().rss
thread = threading.Thread(target=watch)
thread.start()
merge.merge(folder / "large", folder / "model", dtype=dtype)
done.set()
thread.join()
size = (folder / "model/model.safetensors").stat().st_size
print((peak - before) / size)
"""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.exhaustive), "bfloat16"])
def test_merging_needs_less_memory_than_one_and_a_half_models(tmp_path: Path, dtype: str) -> None:
    """117m in proportion: a third of the weights is the embedding, in one piece, as one process saves it."""
    entries = 40_000
    tokenizer = write_tokenizer(tmp_path / "tokenizer", entries)
    for name, layers in (("small", 1), ("large", 12)):
        shape = Shape(entries, layers, 8, 512, 1024)
        weights = {key: torch.full(size, 0.5) for key, size in sizes(shape).items()}
        write_checkpoint(tmp_path / name, LazyWeights(shape, in_memory(weights)), tokenizer)
    command = [sys.executable, "-c", MEASURE, str(tmp_path), dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    print(f"{dtype}: {float(done.stdout):.2f} models")
    assert float(done.stdout) < 1.5
