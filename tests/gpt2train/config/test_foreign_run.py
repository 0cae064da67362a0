"""Run files of other systems' trainings: numbers of tutorials' scripts, formats, units, sources, refusals."""

import json
import random
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import BatchSettings, RunConfig, TrainSettings, preset, read_run_config
from gpt2train.config.foreign_run import convert, foreign_run, nested
from gpt2train.errors import UserError
from gpt2train.foreign.read import read_foreign
from gpt2train.settings import build, flatten

BASE = {"data": {"train": "x"}, "vocab": 50257, "output": "o"}


def options(text: str) -> dict[str, str | None]:
    """Options of a command line as a table; None for a flag without a value."""
    parts = (part.strip().partition(" ") for part in text.split("--")[1:])
    return {name: value or None for name, _, value in parts}


MEGATRON = options(
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --global-batch-size 8 --lr 0.00015 --train-iters 500000 --lr-decay-iters 320000 "
    "--lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16 "
    "--log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10"
)
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "steps_per_print": 10,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "initial_scale_power": 16},
    "wall_clock_breakdown": True,
}


def words(options: Mapping[str, Any]) -> str:
    return " ".join(f"--{name}" if value is None else f"--{name} {value}" for name, value in options.items())


def settings_of(source: str | Path) -> dict[str, Any]:
    return flatten(build(RunConfig, BASE, nested(convert(read_foreign(str(source))).settings)).model_dump())


def as_line(program: str, options: Mapping[str, Any]) -> str:
    return f"{program} {words(options)}"


PAGES = Path(__file__).parents[3] / "docs/coming-from"
ONEFLOW = options(
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 8 --global-batch-size 8 "
    "--num-gpus-per-node 1 --num-nodes 1 --train-iters 500000 --seq-length 1024 --learning-rate 0.00015 "
    "--min-lr 1.0e-5 --lr-decay-style cosine --lr-decay-iters 320000 --lr-warmup-fraction 0.01 --optimizer adamw "
    "--initial-loss-scale 4294967296 --weight-decay 1e-2 --clip-grad 1.0 --save-interval 10000 --log-interval 100 "
    "--checkpoint-activations --multihead-attention-fusion --fp16"
)
CPM = options(
    "--pipe-parallel-size 2 --model-parallel-size 2 --num-layers 2 --hidden-size 256 --num-attention-heads 16 "
    "--kv-hidden-size 16 --ff-hidden-size 1024 --max-position-embeddings 1024 --seq-length 1024 --batch-size 4 "
    "--gas 16 --train-iters 320000 --lr-decay-iters 320000 --lr 1.5e-4 --lr-decay-style cosine --min-lr 1e-5 "
    "--weight-decay 1e-2 --clip-grad 1.0 --warmup 0.01 --log-interval 1 --save-interval 500 --eval-interval 100 "
    "--eval-iters 10 --fp16 --deepspeed --deepspeed_config work/ds_config.json"
)
CPM_T5 = CPM | options(
    "--pipe-parallel-size 1 --hidden-size 128 --ff-hidden-size 256 --num-attention-heads 8 --enc-seq-length 1024 "
    "--dec-seq-length 384"
)


def differences(found: Mapping[str, Any], name: str, *without: str) -> dict[str, Any]:
    expected = flatten(build(RunConfig, BASE, preset(name)).model_dump())
    ignored = (*without, "data.", "vocab", "output")
    return {
        key: (found.get(key), expected.get(key))
        for key in found.keys() | expected.keys()
        if found.get(key) != expected.get(key) and not key.startswith(ignored)
    }


def as_equals(program: str, given: Mapping[str, Any]) -> str:
    parts = [f"--{name.replace('-', '_')}" + ("" if value is None else f"={value}") for name, value in given.items()]
    return f"{program} {' '.join(reversed(parts))}"


def as_variables(program: str, given: Mapping[str, Any]) -> str:
    lines = [f'V_{at}=${{GIVEN_{at}:-"{value}"}}' for at, value in enumerate(given.values())]
    parts = [
        f"    --{name}" + ("" if value is None else f" $V_{at}") + " \\"
        for at, (name, value) in enumerate(given.items())
    ]
    return "\n".join(["#!/bin/bash", *lines, 'ARGS=" \\', *parts, '"', f"{program} $ARGS"])


def as_array(program: str, given: Mapping[str, Any]) -> str:
    lines = [
        f"    --{name}" + ("" if value is None else f" {value}  # {at}")
        for at, (name, value) in enumerate(given.items())
    ]
    return "\n".join(["ARGS=(", *lines, ")", f'{program} "${{ARGS[@]}}"', "echo done"])


def as_growing_text(program: str, given: Mapping[str, Any]) -> str:
    lines = [
        f'if [[ ! -z "{value}" ]]; then\n  cmd+=" --{name} {value or ""}"\nfi' for name, value in given.items() if value
    ]
    flags = [f'cmd+=" --{name}"' for name, value in given.items() if value is None]
    return "\n".join([f'cmd="{program}"', *lines, *flags, "${cmd}"])


STYLES = (as_line, as_equals, as_variables, as_array, as_growing_text)
SCRIPTS = [
    ("torchrun pretrain_gpt.py", MEGATRON, "megatron-345m", ()),
    ("python3 -m oneflow_gpt.training", ONEFLOW, "oneflow-345m", ("seed", "validation.samples")),
    ("deepspeed -i node1:4,5,6,7 pretrain_gpt2.py", CPM | {"checkpoint-activations": None}, "cpm-gpt2", ()),
    ("deepspeed --num_gpus 4 pretrain_t5.py", CPM_T5, "t5-cpm", ()),
]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("script", SCRIPTS, ids=[script[2] for script in SCRIPTS])
def test_the_tutorials_scripts_are_the_presets(script: Any, style: Callable[..., str], tmp_path: Path) -> None:
    program, given, name, without = script
    (tmp_path / "ds_config.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "run.sh").write_text(style(program, given))
    assert differences(settings_of(tmp_path / "run.sh"), name, *without) == {}


@pytest.mark.parametrize(
    ("preset_name", "changes"),
    [
        ("oneflow-117m", "--num-layers 12 --hidden-size 768 --num-attention-heads 12"),
        (
            "oneflow-1x8",
            "--num-layers 16 --hidden-size 1536 --seq-length 2048 --global-batch-size 16 --num-gpus-per-node 8 "
            "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1",
        ),
        (
            "oneflow-4x8",
            "--hidden-size 2304 --num-attention-heads 24 --seq-length 2048 --global-batch-size 512 --num-nodes 4 "
            "--num-gpus-per-node 8 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4",
        ),
    ],
)
def test_sizes_of_oneflow(preset_name: str, changes: str) -> None:
    line = as_line("python3 -m oneflow_gpt.training", ONEFLOW | options(changes))
    assert differences(settings_of(line), preset_name, "seed", "validation.samples") == {}


def block(page: str, begin: str) -> str:
    text = (PAGES / page).read_text(encoding="utf-8")
    return text[text.index(begin) :].partition("```")[0]


def test_the_originals_that_the_pages_quote(tmp_path: Path) -> None:
    found = settings_of(block("megatron-lm.md", "python pretrain_gpt.py"))
    assert differences(found, "megatron-345m", "steps", "validation", "checkpoints", "logging") == {}
    assert (found["steps"], found["data.split"], found["data.train"]) == (5000, "700,200,100", "my-gpt2_text_document")
    (tmp_path / "gpt2_zero3.py").write_text(block("colossalai-zero.md", "# gpt2_configs/gpt2_zero3.py"))
    assert differences(settings_of(tmp_path / "gpt2_zero3.py"), "colossalai-gpt2-small") == {}
    line = "torchrun --standalone --nproc_per_node=1 train_gpt.py --config=gpt2_zero3.py --from_torch"
    (tmp_path / "run.sh").write_text(line)
    assert differences(settings_of(tmp_path / "run.sh"), "colossalai-gpt2-small") == {}
    (tmp_path / "finetune.py").write_text(
        "NUM_EPOCHS = 3\nBATCH_SIZE = 32\nLEARNING_RATE = 2.4e-5\nWEIGHT_DECAY = 0.01\nWARMUP_FRACTION = 0.1\n"
        "plugin = HybridParallelPlugin(tp_size=1, pp_size=2, num_microbatches=None, microbatch_size=1, zero_stage=1,\n"
        '    precision="fp16", initial_scale=1)\noptimizer = HybridAdam(grouped, lr=lr, eps=1e-8)\n'
    )
    parts = (PAGES / "colossalai-booster.md").read_text(encoding="utf-8").split('.toml"\n')[1:]
    [quoted] = [task for part in parts if "classification" in (task := part.partition("```")[0])]
    expected = flatten(tomllib.loads(quoted)["train"])
    booster = settings_of(tmp_path / "finetune.py")
    assert {key: booster[key] for key in expected} == expected
    assert (booster["schedule.kind"], booster["schedule.warmup_fraction"]) == ("linear", 0.1)


def test_other_forms_of_colossalai(tmp_path: Path) -> None:
    zero = "dict(model_config=dict(offload_config=dict(device='cpu')), optimizer_config=dict(cpu_offload=True))"
    (tmp_path / "a.py").write_text(f"BATCH_SIZE = 2\nSEQ_LEN = 1024\nzero = {zero}\n")
    found = settings_of(tmp_path / "a.py")
    assert (found["parallel.zero"], found["parallel.cpu_offload"], found["precision"]) == (3, True, "fp16")
    assert found.get("parallel.offload_placement", "all") == "all"
    (tmp_path / "b.py").write_text(
        "BATCH_SIZE = 8\nNUM_MICRO_BATCHES = 4\nPIPE = 2\nMODE = '1d'\nfp16 = dict(mode=AMP_TYPE.NAIVE)\n"
        "parallel = dict(pipeline=PIPE, tensor=dict(mode=MODE, size=2))\nmodel = dict(type=gpt2_small)\n"
    )
    made = convert(read_foreign(str(tmp_path / "b.py")))
    found = settings_of(tmp_path / "b.py")
    assert (found["batch.micro_batch"], found["batch.gradient_accumulation_steps"]) == (2, 4)
    assert (found["parallel.pp"], found["parallel.tp"], found["precision"]) == (2, 2, "fp16")
    assert all("PIPE" not in left for left in made.left)


def test_nanogpt(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/small.py").write_text(
        "batch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\nmax_iters = 600000\n"
        "eval_iters = 200\nwandb_log = True\nwandb_project = 'owt'\ngrad_clip = 0.0\n"
    )
    found = settings_of(tmp_path / "config/small.py")
    assert (found["batch.global_batch"], found["batch.gradient_accumulation_steps"]) == (480, 0)
    assert (found["validation.samples"], found["logging.wandb"], found["optimizer.max_grad_norm"]) == (2400, "owt", 1e9)
    assert (found["optimizer.lr"], found["schedule.warmup"], found["model.options.bias"]) == (6e-4, 2000, False)
    line = "torchrun train.py config/small.py --batch_size=6 --compile=False --decay_lr=False\n"
    (tmp_path / "run.sh").write_text(line)
    found = settings_of(tmp_path / "run.sh")
    assert (found["batch.global_batch"], found["performance.compile"]) == (240, "off")
    assert (found["schedule.kind"], found["schedule.warmup"]) == ("constant", 0)


def test_configs_in_other_formats(tmp_path: Path) -> None:
    (tmp_path / "litgpt.yaml").write_text(
        "out_dir: out/x\nprecision: bf16-mixed\ndevices: auto\n"
        "train: {global_batch_size: 64, micro_batch_size: 4, max_tokens: 1000000000, max_seq_length: 512}\n"
        "optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 6e-4, betas: [0.9, 0.95]}}\n"
    )
    found = settings_of(tmp_path / "litgpt.yaml")
    assert (found["steps"], found["optimizer.lr"], found["optimizer.beta2"]) == (-(-(10**9) // (64 * 512)), 6e-4, 0.95)
    (tmp_path / "titan.toml").write_text(
        "training = {local_batch_size = 2, global_batch_size = -1, seq_len = 4096, steps = 1000}\n"
        "optimizer = {lr = 3e-4}\nlr_scheduler = {warmup_steps = 50, decay_ratio = 0.1, min_lr_factor = 0.1}\n"
        "parallelism = {data_parallel_shard_degree = -1, tensor_parallel_degree = 2}\n"
    )
    found = settings_of(tmp_path / "titan.toml")
    assert (found["model.context"], found["parallel.tp"], found["parallel.zero"]) == (4096, 2, 3)
    assert found["schedule.min_lr"] == pytest.approx(3e-5)
    assert (found["schedule.kind"], found["schedule.decay_fraction"]) == ("wsd", 0.1)
    (tmp_path / "trainer.json").write_text(
        '{"output_dir": "o", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "max_steps": -1, '
        '"num_train_epochs": 2, "learning_rate": 1e-4, "warmup_steps": 0.05, "lr_scheduler_type": "cosine", '
        '"bf16": true, "save_total_limit": 2}'
    )
    found = settings_of(tmp_path / "trainer.json")
    assert (found["batch.micro_batch"], found["batch.gradient_accumulation_steps"], found["epochs"]) == (4, 8, 2.0)
    assert (found["schedule.warmup_fraction"], found["schedule.warmup"], found["precision"]) == (0.05, 0, "bf16")
    assert read_foreign(str(tmp_path / "trainer.json")).system.key == "transformers"


def test_a_warm_up_in_steps_replaces_a_default_share() -> None:
    found = settings_of("deepspeed pretrain_gpt2.py --num-layers 2 --train-iters 100 --lr 1e-4 --lr-warmup-iters 20")
    assert (found["schedule.warmup"], found["schedule.warmup_fraction"]) == (20, 0.0)


def test_gpt_neox(tmp_path: Path) -> None:
    shape = "num-layers: 12\nhidden-size: 768\nnum-attention-heads: 12\nseq-length: 2048\npipe-parallel-size: 0\n"
    adam = "optimizer: {type: Adam, params: {lr: 6e-4, betas: [0.9, 0.95]}}\ntrain_micro_batch_size_per_gpu: 4\n"
    rest = "norm: layernorm\npos-emb: rotary\nno-weight-tying: true\nwarmup: 0.02\ncheckpoint_factor: 500\n"
    (tmp_path / "125M.yml").write_text(shape + adam + rest + "train-iters: 1000\nprecision: bfloat16\n")
    made = convert(found := read_foreign(str(tmp_path / "125M.yml")))
    settings = settings_of(tmp_path / "125M.yml")
    assert (found.system.title, settings["model.family"], settings["precision"]) == ("GPT-NeoX", "llama", "bf16")
    assert not settings["model.options.tied"]
    assert (settings["parallel.pp"], settings["checkpoints.interval"]) == (1, 500)
    assert (settings["optimizer.lr"], settings["schedule.warmup_fraction"]) == (6e-4, 0.02)
    assert "swiglu" in made.left["pos-emb = rotary"]
    assert "not known" not in made.left.values()


VIRTUAL_STAGES = "parallel.virtual_pipeline_stages"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--train-samples 1000000", {"steps": 125_000}),
        ("--train-samples 1000001", {"steps": 125_001}),
        ("--lr-warmup-samples 80000 --lr-warmup-fraction 0", {"schedule.warmup": 10_000}),
        ("--lr-decay-samples 800", {"schedule.decay_steps": 100}),
        ("--rampup-batch-size 4 4 400 --train-samples 800", {"steps": 150, "batch.ramp_up.start": 4}),
        ("--clip-grad 0", {"optimizer.max_grad_norm": 1e9}),
        ("--loss-scale 1024", {"scaler.initial": 1024.0, "scaler.static": True}),
        ("--num-layers-per-virtual-pipeline-stage 3 --pipeline-model-parallel-size 4", {VIRTUAL_STAGES: 2}),
        ("--eval-iters 7", {"validation.samples": 56}),
        ("--data-path 0.3 a 0.7 b", {"data.train": [{"prefix": "a", "weight": 0.3}, {"prefix": "b", "weight": 0.7}]}),
        ("--use-distributed-optimizer --recompute-granularity selective", {"parallel.zero": 1}),
        ("--optimizer-cpu-offload", {"parallel.cpu_offload": True, "parallel.offload_placement": "optimizer"}),
        ("--ffn-hidden-size 4096 --kv-channels 64", {"model.options.inner": None, "model.options.head_dim": None}),
        ("--ffn-hidden-size 2048", {"model.options.inner": 2048}),
        (
            "--swiglu --position-embedding-type rope --normalization RMSNorm --disable-bias-linear "
            "--num-query-groups 4",
            {"model.family": "llama", "model.options.kv_heads": 4, "model.options.mlp_bias": False},
        ),
    ],
)
def test_units_are_converted_by_arithmetic(more: str, expected: dict[str, Any]) -> None:
    made = settings_of(f"{as_line('python pretrain_gpt.py', MEGATRON)} {more}")
    found = {key: [dict(one) for one in made[key]] if key == "data.train" else made.get(key) for key in expected}
    assert found == expected


def test_batches_agree_with_the_processes() -> None:
    """Two of micro-batch, accumulation and global batch, or all three, as DeepSpeed has them."""
    draw = random.Random(1)
    for _ in range(60):
        micro, accumulation, processes = draw.choice([1, 2, 4]), draw.choice([1, 2, 8]), draw.choice([1, 2, 4])
        sizes = {
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": accumulation,
            "train_batch_size": micro * accumulation * processes,
        }
        left_out = draw.choice([None, *sizes])
        given = {name: value for name, value in sizes.items() if name != left_out}
        line = f"deepspeed --num_gpus {processes} pretrain_gpt2.py --num-layers 2 {words(given)}"
        made = convert(read_foreign(line))
        batch = build(BatchSettings, nested(made.settings)["batch"])
        assert batch.sizes(processes) == (micro, micro * accumulation * processes, accumulation), (given, processes)


ALIASES = "b0: &b0 [1, 2]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 60))


def test_every_value_has_its_source_and_the_rest_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = as_line("torchrun --nproc_per_node 4 pretrain_gpt.py", MEGATRON) + " --data-impl mmap --save c --no-such 1"
    arguments = ["config", "--from", line, "--train", "tokens/a", "--vocab", "50304", "--output", "runs/a"]
    assert run_command(app, arguments) == 0
    text, note = capsys.readouterr()
    assert "#     --save c: a run has a folder of its own; --output names it\n" in text
    assert "3 names without a counterpart" in note
    assert "#     --data-impl mmap: token files are always memory-mapped" in text
    assert "#     --no-such 1: not known" in text
    assert "--nproc-per-node 4 -m gpt2train.train" in text
    assert "lr = 0.00015 # --lr 0.00015\n" in text
    assert "beta2 = 0.999 # Megatron-LM's default\n" in text
    assert 'precision = "fp16" # --fp16\n' in text
    (tmp_path / "run.toml").write_text(text)
    config = read_run_config("run.toml")
    assert (config.data.train, config.vocab, config.output) == ("tokens/a", 50304, "runs/a")
    made = convert(read_foreign(line))
    expected = build(TrainSettings, {k: v for k, v in nested(made.settings).items() if k in TrainSettings.model_fields})
    assert config.model_dump(include=set(TrainSettings.model_fields)) == expected.model_dump()
    unsourced = [one for one in text.splitlines() if "=" in one and not one.startswith("#") and " # " not in one]
    sourced = [one for one in text.splitlines() if " # " in one and not one.startswith("#")]
    assert len(sourced) >= len(MEGATRON) - 2 and unsourced


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.json", "[" * 100_000, "a.json is not valid JSON"),
        ("a.json", "[1]", "no table of names and values"),
        ("a.json", '{"x": 1}', "has no name of a system that is known"),
        ("a.json", '{"optimizer": ' * 30 + "1" + "}" * 30, "20 levels"),
        ("a.json", json.dumps({f"x{n}": 1 for n in range(6000)}), "more than 5,000 values"),
        ("a.yaml", ALIASES, "more than 5,000"),
        ("a.yaml", "a: [", "is not valid YAML"),
        ("a.py", "x = (", "is no config in Python"),
        ("a.sh", "ls -l\n", "no command in a.sh"),
        ("a.sh", "x" * 200_000, "has more than"),
        ("a.py", "\udcff", "a.py: it is not UTF-8"),
        ("a.toml", "steps = 3\n[model]\nlayers = 2\n[batch]\nmicro_batch = 1\n", "has settings of gpt2train already"),
        ("a.sh", "python pretrain_gpt.py --num-layers 24 --lr 50", "--lr 50: "),
        ("a.sh", "python pretrain_gpt.py --num-layers many", "--num-layers many: "),
        ("a.json", '{"train_batch_size": 1e400, "gradient_clipping": "x"}', "train_batch_size = inf: "),
    ],
    ids=range(16),
)  # fmt: skip
def test_hostile_sources_are_refused_in_one_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError) as refused:
        foreign_run(str(tmp_path / name), None, None, None, None)
    error = str(refused.value)
    assert message in error and "\n" not in error and len(error) < 700


def test_given_data_take_the_place_of_theirs() -> None:
    line = f"{as_line('python pretrain_gpt.py', MEGATRON)} --data-path theirs --split 949,50,1 --vocab-size 50304"
    text, _ = foreign_run(line, None, None, None, None)
    config = tomllib.loads(text)
    assert (config["data"]["train"], config["data"]["split"], config["vocab"]) == ("theirs", "949,50,1", 50304)
    text, _ = foreign_run(line, "ours", "held", 50257, "runs/x")
    config = tomllib.loads(text)
    assert config["data"] == {"train": "ours", "valid": "held"}
    assert (config["vocab"], config["output"]) == (50257, "runs/x")


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    commands = ("echo hello world", "python x.py --seed 1 --n 2", "")
    for source in (str(tmp_path / "no.sh"), "\0", "x" * 5000, str(tmp_path), *commands):
        with pytest.raises(UserError):
            read_foreign(source)


@pytest.mark.parametrize("name", ["wandb-project", "nproc_per_node", "no-such", "data-path", "load", "nnodes"])
def test_a_value_cannot_end_its_remark(name: str, tmp_path: Path) -> None:
    hostile = shlex.quote("a\nlayers = 99\n[model]\r#x\u2028y\x1b[2J")
    line = f"python pretrain_gpt.py --num-layers 2 --lr 1e-4 --{name} {hostile} --a{hostile} 1 $({hostile})"
    text, _ = foreign_run(line, None, None, None, None)
    (tmp_path / "run.toml").write_text(text)
    assert read_run_config(tmp_path / "run.toml").model.layers == 2
    assert "\nlayers = 99" not in text and "\x1b" not in text


def test_a_config_of_another_system_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "ds_config.json": (json.dumps(DEEPSPEED), "DeepSpeed in JSON"),
        "gpt2.py": ("batch_size = 12\nblock_size = 1024\nn_layer = 12\n", "nanoGPT in Python"),
        "lit.yaml": ("train:\n  max_tokens: 5\n  micro_batch_size: 4\n", "LitGPT in YAML"),
        "axolotl.yml": ("base_model: x\nsequence_len: 2048\nsample_packing: true\n", "Axolotl in YAML"),
        "run.sh": ("python pretrain_gpt.py --num-layers 2\n", "Megatron-LM in shell"),
        "plain.json": ('{"num_train_epochs": 3, "per_device_train_batch_size": 4}', "transformers' Trainer in JSON"),
    }
    for name, (text, kind) in files.items():
        (tmp_path / name).write_text(text)
        assert run_command(app, ["plan", "--config", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert kind in error and f"gpt2train config --from {tmp_path / name}" in error and error.count("\n") == 1
    (tmp_path / "titan.toml").write_text("[training]\nseq_len = 2048\n")
    assert run_command(app, ["plan", "--config", str(tmp_path / "titan.toml")]) == 2
    error = capsys.readouterr().err
    assert "configs of torchtitan have it" in error and "gpt2train config --from FILE" in error
    (tmp_path / "own.toml").write_text("steps = \n")
    assert run_command(app, ["plan", "--config", str(tmp_path / "own.toml")]) == 2
    assert "is not valid TOML" in capsys.readouterr().err
