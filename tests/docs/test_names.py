"""Names on the pages: of other systems (also on the flows' command lines and in the search), and of our own modules."""

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.command import app_of
from flows.dataprep import dataprep
from flows.pretrain import pretrain
from gpt2train.command_line import run_command
from gpt2train.foreign.table import OF_A_FLOW, System, systems, unknown_option

DOCS = Path(__file__).parents[2] / "docs"
# What the tutorials type, and the option of `flows.pretrain` in its place, without its `--train.`; `-` is none.
TYPED = """
num-layers=model.layers hidden-size=model.hidden num-attention-heads=model.heads seq-length=model.context
max-position-embeddings=model.max-positions micro-batch-size=batch.micro-batch global-batch-size=batch.global-batch
batch-size=batch.micro-batch gas=batch.gradient-accumulation-steps
num-accumulation-steps=batch.gradient-accumulation-steps train-iters=steps lr=optimizer.lr learning-rate=optimizer.lr
min-lr=schedule.min-lr lr-decay-iters=schedule.decay-steps lr-decay-style=schedule.kind
lr-warmup-fraction=schedule.warmup-fraction warmup=schedule.warmup-fraction weight-decay=optimizer.weight-decay
clip-grad=optimizer.max-grad-norm optimizer=optimizer.name fp16=precision+fp16 initial-loss-scale=scaler.initial
seed=seed save=--output load=- save-interval=checkpoints.interval log-interval=logging.interval
eval-interval=validation.interval eval-iters=validation.samples data-path=--tokens dataset=--tokens data-impl=-
vocab-size=--vocab vocab-file=--tokenizer merge-file=--tokenizer
checkpoint-activations=parallel.activation-checkpointing+full multihead-attention-fusion=-
tensor-model-parallel-size=parallel.tp pipeline-model-parallel-size=parallel.pp model-parallel-size=parallel.tp
pipe-parallel-size=parallel.pp num-gpus-per-node=--launch.processes num-nodes=--launch.nodes node-ips=--launch.hosts
use-rdma=- kv-hidden-size=model.options ff-hidden-size=model.options enc-seq-length=model.context
dec-seq-length=model.options deepspeed_config=-
"""
# More names of the tutorials that a reader may search for.
SEARCHED = """
blacklist_urls download.py cleanup_dataset cleanup_fix_dataset find_duplicates group_duplicate_url
remove_group_duplicates merge_data merge_jsons preprocess_data checkpoint_util HybridAdam LowLevelZeroPlugin
GeminiPlugin TorchDDPPlugin launch_container model_optim_rng latest_checkpointed_iteration run_text_generation_server
scraped HybridParallelPlugin gpt2_pp1d shuf run_gpt2 run_t5 ds_config_gpt2 NNODES NODE_RANK MASTER_ADDR pretrain_345M
train_data.json WebtextDataset
"""


def typed() -> dict[str, str]:
    """Option of this flow, with the value that it needs, by the name that the tutorials type."""
    found = dict(pair.split("=") for pair in TYPED.split())
    return {
        name: option if option[0] == "-" else f"--train.{option.replace('+', ' ')}" for name, option in found.items()
    }


@cache
def options_of(flow: Any) -> frozenset[str]:
    return frozenset(name for argument in app_of(flow).assemble_argument_collection() for name in argument.names)


def pages() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "hooks"))
        import names_reference  # type: ignore[import-not-found]

        found = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
        return found | {names_reference.PAGE: found[names_reference.PAGE] + names_reference.page()}


def test_a_flow_knows_the_names_of_the_tutorials(capsys: pytest.CaptureFixture[str]) -> None:
    options = options_of(pretrain)
    for name, expected in typed().items():
        answer = unknown_option(f"--{name}", options)
        assert ("has no counterpart here: " if expected == "-" else f" {expected}") in answer, answer
        assert "did you mean" not in answer
    assert run_command(app_of(pretrain), ["--lr=3e-4"]) == 2
    assert "Megatron-LM's --lr is --train.optimizer.lr here" in capsys.readouterr().err
    assert "--input is --documents here" in unknown_option("--input", options_of(dataprep))
    assert "is --train.optimizer.lr of python -m flows.pretrain" in unknown_option("--lr", options_of(dataprep))


def test_options_of_the_flows_are_there() -> None:
    options = {"pretrain": options_of(pretrain), "dataprep": options_of(dataprep)}
    for system in systems().values():
        for name, row in system.names.items():
            for target in row.to:
                option, _, command = target.partition(" of ")
                flow = re.match(r"python -m flows\.(\w+)", command)
                if flow and flow[1] in options:
                    assert option in options[flow[1]], name


@pytest.mark.parametrize("system", [one for one in systems().values() if one.page != "coming-from/names"])
def test_the_tables_of_the_pages_say_the_same(system: System) -> None:
    text = (DOCS / f"{system.page}.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| theirs \| here \|\n\|[-| ]+\|\n((?:\|.*\n)+)", text, re.M)
    checked = 0
    for row in "".join(tables).splitlines():
        theirs, ours = (cell.strip() for cell in row.strip("|").split(" | ", 1))
        for name in re.findall(r"`-{0,2}([\w-]+)[^`]*`", theirs):
            if (found := system.row(name)) is None or found.setting is None:
                continue
            option = OF_A_FLOW.get(found.setting, found.setting.rpartition(".")[2])
            assert option.replace("_", "-") in ours.replace("_", "-"), (name, ours)
            checked += 1
    assert checked or system.key in ("megatron", "deepspeed")  # whose pages have no such table


def test_the_search_finds_every_name() -> None:
    config = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    [separator] = re.findall(r"search: \{separator: ('.*?')\}", config)
    split = re.compile(yaml.safe_load(separator))

    def words(text: str) -> set[str]:
        return {word.strip("|*,;'").lower() for word in split.split(text)}

    sections = [words(section) for text in pages().values() for section in re.split(r"^## ", text, flags=re.M)]
    names = [name for system in systems().values() for name in system.names]
    for name in [*names, *SEARCHED.split(), *typed()]:
        parts = words(name) - {""}
        assert any(parts <= section for section in sections), name


def test_what_the_pages_import_is_there() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md")))
    found = re.findall(r"^ *from ((?:gpt2train|tasks|flows)\b[\w.]*) import (.+)$", text, re.M)
    assert len(found) > 30
    for module, names in found:
        assert "(" not in names, f"{module}: one import per line on a page"
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name.partition(" as ")[0]), f"{module}.{name}"
