"""Settings of a run: presets, the recipe of some, batches, refusals, TOML, and `--set` on the command line."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gpt2train.cli import app, run_command
from gpt2train.config import (
    CONFIG_FILE,
    BatchSettings,
    Corpus,
    RampUp,
    RunConfig,
    TrainSettings,
    preset,
    presets,
    read_run_config,
    read_run_settings,
    resolve_epochs,
    run_config,
    to_toml,
)
from gpt2train.config.batch_plan import BatchPlan
from gpt2train.config.commented import commented
from gpt2train.config.recipe import counted_parameters, horizon, model_of, modern, shape_of, training_of
from gpt2train.errors import UserError
from gpt2train.model.families import parameter_count, sizes
from gpt2train.model.gpt2 import GPT2
from gpt2train.parallel.layout import Layout
from gpt2train.settings import build, flatten, parse_assignment

PUBLISHED = {
    "117m": 124_475_904,
    "345m": 354_871_296,
    "762m": 774_090_240,
    "1542m": 1_557_686_400,
    "megatron-345m": 354_871_296,
    "oneflow-117m": 124_475_904,
    "oneflow-345m": 354_871_296,
    "oneflow-1x8": 533_720_064,
    "oneflow-4x8": 1_650_166_272,
    "colossalai-gpt2-small": 124_475_904,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_presets_have_the_published_sizes(name: str) -> None:
    settings = build(TrainSettings, preset(name))
    config = run_config(settings, train="t", valid=None, vocab=50257, tokenizer_hash=None, output="o")
    with torch.device("meta"):
        model = GPT2(config.shape)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name] == parameter_count(config.shape)


def test_every_preset_is_valid_and_documented() -> None:
    assert presets() == sorted([*PUBLISHED, "cpm-gpt2", "t5-cpm", "tiny", "modern-12", "modern-24", "modern-tiny"])
    for name in presets():
        settings = build(TrainSettings, preset(name))
        assert settings.batch.sizes(2 if name == "oneflow-1x8" else 1)[2] >= 1


@pytest.mark.parametrize(
    ("name", "processes", "degrees", "batch"),
    [
        ("oneflow-4x8", 32, (2, 4, 4), (8, 512, 32)),
        ("oneflow-1x8", 8, (2, 4, 1), (8, 16, 1)),
        ("cpm-gpt2", 4, (1, 2, 2), (4, 64, 16)),
        ("t5-cpm", 4, (2, 2, 1), (4, 128, 16)),
        ("colossalai-gpt2-small", 4, (4, 1, 1), (2, 8, 1)),
    ],
)
def test_the_distributed_presets_use_all_gpus_of_their_machines(
    name: str, processes: int, degrees: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    """DP x TP x PP; micro-batch, global batch and accumulation."""
    layout = Layout.of(build(TrainSettings, preset(name)), processes)
    assert (layout.data, layout.tp, layout.pp) == degrees and layout.world == processes
    assert (layout.micro_batch, layout.global_batch, layout.accumulation) == batch


def test_settings_that_are_off_change_no_file() -> None:
    """So that existing runs, whose folders are named after all settings, go on."""
    dumped = build(TrainSettings, {}).model_dump()
    assert "offload_placement" not in dumped["parallel"]
    assert "epochs" not in dumped and "decay_steps" not in dumped["schedule"] and "max_positions" not in dumped["model"]


def test_epochs_determine_the_steps() -> None:
    settings = build(TrainSettings, {"epochs": 3, "schedule": {"warmup": 50}})
    assert resolve_epochs(settings, 100, BatchPlan(8)).steps == 38  # 300 samples, rounded up
    assert resolve_epochs(settings, 1, BatchPlan(8)).steps == 1
    half = build(TrainSettings, {"epochs": 0.5})
    assert resolve_epochs(half, 100, BatchPlan(8)).steps == 7
    plain = build(TrainSettings, {"steps": 200})
    assert resolve_epochs(plain, 100, BatchPlan(8)) is plain
    ramp = BatchPlan(4, RampUp(start=2, increment=1, samples=8))  # 2, 2, 3, 3, 4, 4 …
    assert resolve_epochs(half, 20, ramp).steps == 4


def test_an_unknown_preset_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="choose: 117m, 1542m, 345m, 762m, colossalai-gpt2-small, cpm-gpt2, megatron-"):
        preset("llama")
    assert run_command(app, ["config", "--preset", "345M"]) == 2
    assert "unknown preset '345M'; did you mean '345m'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (f"[parallel]\nzero = {stage!r}", "parallel.zero: input should be 0, 1, 2 or 3")
            for stage in ("4", "one", "-1")
        ),
        ("[optimizer]\nlrr = 1", r"did you mean 'optimizer.lr'\?"),
        ("steps = 10\n[schedule]\nwarmup = 10", "schedule.warmup 10 must be below steps 10"),
        ("[schedule]\nwarmup = 10\ndecay_steps = 10", "schedule.warmup 10 must be below schedule.decay_steps 10"),
        ("[model]\nmax_positions = 512", "max_positions 512 is below context 1024; raise it, or set 0"),
        ("epochs = -1", "epochs"),
        ("[model]\nheads = 7", "hidden 768 is not a multiple of heads 7"),
        ("[schedule]\nmin_lr = 1.0", "schedule.min_lr 1 is above optimizer.lr"),
    ],
)
def test_mistakes_are_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build(TrainSettings, tomllib.loads(text))
    assert "\n" not in str(caught.value)


def test_corpora_of_the_mixture_are_added_to_the_tokens_of_the_run(tmp_path: Path) -> None:
    mix = {"weight": 3, "corpora": [{"prefix": "b/t"}, {"prefix": "c/t", "weight": 0.5}]}
    settings = build(TrainSettings, {"mixture": mix})
    config = run_config(settings, train="a/t", valid=None, vocab=4096, tokenizer_hash=None, output="out")
    found = [(corpus.prefix, corpus.weight) for corpus in config.data.corpora]
    assert found == [("a/t", 3), ("b/t", 1), ("c/t", 0.5)]
    quoted = build(
        RunConfig, {"data": {"train": [{"prefix": 'a "quoted" \\ name', "weight": 1.5}]}, "vocab": 3, "output": "o"}
    )
    for whole, written in ((config, to_toml), (config, commented), (quoted, commented)):
        (tmp_path / "c.toml").write_text(written(whole))
        assert read_run_config(tmp_path / "c.toml") == whole
    with pytest.raises(UserError, match="as a list of"):
        build(RunConfig, config.model_dump(), {"mixture": mix})
    with pytest.raises(UserError, match="at least one corpus"):
        build(RunConfig, config.model_dump(), {"data": {"train": []}})
    corpora = [corpus.model_dump() | {"weight": 0} for corpus in config.data.corpora]
    with pytest.raises(UserError, match="all weights are 0"):
        build(RunConfig, config.model_dump(), {"data": {"train": corpora}})
    left = build(RunConfig, config.model_dump(), {"data": {"train": [*corpora[1:], {"prefix": "a/t"}]}})
    assert left.data.corpora == (Corpus(prefix="a/t"),)  # as without the others


@pytest.mark.parametrize("name", presets())
def test_a_commented_file_is_read_as_the_preset(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has every setting, set or as a comment, with its description."""
    flags = ["--train", "t/tokens", "--valid", "v/tokens", "--vocab", "300", "--output", "run"]
    assert run_command(app, ["config", "--preset", name, *flags]) == 0
    (tmp_path / "run.toml").write_text(capsys.readouterr().out)
    given = {"data": {"train": "t/tokens", "valid": "v/tokens"}, "vocab": 300, "output": "run"}
    assert read_run_config(tmp_path / "run.toml") == build(RunConfig, preset(name), given)
    lines = (tmp_path / "run.toml").read_text().splitlines()
    for model in (RunConfig, *(type(value) for _, value in RunConfig.model_validate(preset(name) | given))):
        for field in getattr(model, "model_fields", {}):
            named = re.compile(rf"(\[(.*\.)?{field}\]$|{field} = |# {field} is not set)")
            assert any(map(named.match, lines)), field
    assert max(map(len, lines)) <= 120 and "# Seed of the initial weights" in "\n".join(lines)


def test_the_zero_stage_may_be_the_text_of_a_flag() -> None:
    """cyclopts passes `--train.parallel.zero 1` on as text, since the type is a choice of numbers."""
    assert build(TrainSettings, {"parallel": {"zero": "1"}}).parallel.zero == 1


def test_a_preset_is_what_the_recipe_gives_and_a_depth_out_of_bounds_is_refused() -> None:
    """The demo's is depth 3 for as many tokens as two cores see in minutes."""
    keys = ("steps", "model.heads", "batch.global_batch", "optimizer.lr", "schedule.warmup")
    for depth, expected in ((12, (18853, 6, 128, 0.003, 377)), (24, (28868, 12, 512, 0.0012, 577))):
        assert preset(f"modern-{depth}") == modern(depth)
        assert tuple(flatten(preset(f"modern-{depth}"))[key] for key in keys) == expected
    given = preset("modern-tiny")
    rules = training_of(model_of(3), given["steps"] * given["batch"]["global_batch"] * 256)
    assert given["model"] == model_of(3)
    assert given["optimizer"] == rules["optimizer"]
    assert given["schedule"] == rules["schedule"] | {"warmup": round(0.02 * given["steps"])}
    for depth in (0, -3, 129):
        with pytest.raises(UserError, match=rf"--depth {depth}: the recipe has 1 to 128 blocks"):
            modern(depth)


def test_the_numbers_of_depth_12_follow_from_the_published_rules() -> None:
    """By hand: 12 blocks of 4 x 768² + 3 x 768 x 2,048 and their norms, 20 tokens for each parameter, Step Law."""
    block = 4 * 768**2 + 3 * 768 * 2048 + 2 * 768 + 2 * 128
    head = 50_257 * 768
    tokens = 20 * (12 * block + head)
    settings = build(TrainSettings, modern(12))
    assert counted_parameters(shape_of(model_of(12))) == (12 * block, 12 * block + head)
    assert horizon(12) == tokens
    batch = settings.batch.global_batch * settings.model.context
    assert batch == 2**17 and abs(math.log2(0.58 * tokens**0.571 / batch)) <= 0.5
    assert settings.steps == round(tokens / batch)
    assert settings.optimizer.lr == pytest.approx(1.79 * (12 * block) ** -0.713 * tokens**0.307, rel=0.05)
    assert (settings.model.hidden, settings.model.heads, settings.optimizer.name) == (768, 6, "muon")


@pytest.mark.parametrize("depth", [*range(1, 33), 64, 128])
def test_every_depth_is_a_valid_run_that_grows_with_it(depth: int) -> None:
    settings = build(TrainSettings, modern(depth))
    model = settings.model
    assert model.hidden == 64 * depth == model.heads * model.shape(128).head_dim
    assert model.shape(128).head_dim in (64, 128)
    for processes in (1, 2):
        settings.batch.sizes(processes)
    if depth > 1:
        assert horizon(depth) > horizon(depth - 1)
        assert settings.optimizer.lr <= build(TrainSettings, modern(depth - 1)).optimizer.lr
    if depth in (3, 7, 8, 12):  # the vocabulary's rows are not most of a small model
        shape = shape_of(model_of(depth))
        assert math.prod(sizes(shape)["lm_head.weight"]) < parameter_count(shape) / 2


FILE = """
vocab = 300
output = "run"
steps = 90
[data]
train = "tokens"
[optimizer]
lr = 1e-3
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps=5", {"steps": 5}),
        ("optimizer.lr = 3e-4", {"optimizer": {"lr": 3e-4}}),
        ("data.train=my tokens", {"data": {"train": "my tokens"}}),
        ("data.train='a=b'", {"data": {"train": "a=b"}}),
        ("performance.tf32=false", {"performance": {"tf32": False}}),
        ("model.options={kv_heads = 2}", {"model": {"options": {"kv_heads": 2}}}),
        ("output=", {"output": ""}),
        ("output=a\nsteps = 1", {"output": "a\nsteps = 1"}),  # one value, not a second setting
    ],
)
def test_values_are_toml_or_plain_text(text: str, expected: dict[str, Any]) -> None:
    assert parse_assignment(text) == expected


def test_text_without_a_setting_and_a_value_that_is_nested_too_deeply_are_refused() -> None:
    said = r"^--set .*: give a setting and its value, such as --set optimizer.lr=3e-4$"
    for text in ("steps", "=5", "optimizer..lr=1", ".lr=1", ""):
        with pytest.raises(UserError, match=said):
            parse_assignment(text)
    with pytest.raises(UserError, match="the value is nested too deeply") as caught:
        parse_assignment("steps=" + "[" * 5000)
    assert len(str(caught.value)) < 150


def test_changes_lie_above_the_file_and_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)

    def read(*changes: str) -> Any:
        return read_run_config(file, "tiny", [parse_assignment(text) for text in changes])

    plain, changed = read(), read("optimizer.lr=3e-4", "optimizer.beta2=0.9", "optimizer.lr=2e-4")
    assert (plain.optimizer.lr, changed.optimizer.lr, changed.optimizer.beta2) == (1e-3, 2e-4, 0.9)
    assert changed.model_copy(update={"optimizer": plain.optimizer}) == plain
    with pytest.raises(UserError, match="no-such"):
        read_run_config(tmp_path / "no-such.toml")
    with pytest.raises(UserError, match=r"^--set: unknown setting 'optimizer.lrr'; did you mean 'optimizer.lr'"):
        read("optimizer.lrr=1")
    with pytest.raises(UserError, match=r"^--set: steps: .* \(got 0\)"):
        read("steps=0")
    file.write_text(FILE.replace("steps = 90", "steps = 0"))
    with pytest.raises(UserError, match=r"run.toml: steps: "):
        read("optimizer.lr=1e-4")


@pytest.mark.parametrize(
    ("in_file", "change", "message"),
    [
        ("", "schedule.warmup=90", "--set: schedule.warmup 90 must be below steps 90"),
        ("", "steps=10", "--set: schedule.warmup 10 must be below steps 10"),
        ("warmup = 95", "schedule.warmup=94", "--set: schedule.warmup 94 must be below steps 90"),
        ("warmup = 95", "logging.interval=5", "{file}: schedule.warmup 95 must be below steps 90"),
        ("warmup = 5", "schedule.warmup_fraction=0.1", "--set: schedule: the warm-up is given more than once"),
        ("warmup = 5\nwarmup_fraction = 0.1", "schedule.min_lr=0", "{file}: schedule: the warm-up is given more than"),
    ],
)
def test_settings_that_contradict_each_other_are_blamed_on_the_layer_that_brings_it_in(
    in_file: str, change: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"{FILE}\n[schedule]\n{in_file or 'warmup = 10'}\n")
    with pytest.raises(UserError, match=f"^{re.escape(message.format(file=file))}"):
        read_run_config(file, "tiny", [parse_assignment(change)])


@pytest.mark.parametrize(
    ("in_file", "changes", "message"),
    [
        ("data.train = 't'\nschedule.warmup = 95", ["vocab=300"], "{file}: schedule.warmup 95 must be below steps 90"),
        ("schedule.warmup = 95", ["vocab=300", "data.train=t"], "{file}: schedule.warmup 95 must be below steps 90"),
        ("data.valid = 'v'\ndata.split = '9,1'", ["vocab=300", "data.train=t"], "{file}: data: data.split and data."),
        ("data.valid = 'v'", ["vocab=300", "data.train=t", "data.split=9,1"], "--set: data: data.split and data."),
    ],
)
def test_a_contradiction_stays_the_files_if_a_change_gives_what_the_file_lacks(
    in_file: str, changes: list[str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"output = 'run'\nsteps = 90\n{in_file}\n")
    with pytest.raises(UserError, match=f"^{re.escape(message.format(file=file))}"):
        read_run_config(file, "tiny", [parse_assignment(change) for change in changes])


def test_paths_begin_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # Windows
    (tmp_path / "run.toml").write_text(FILE.replace('"run"', '"~/run"'))
    changes = ['data.train=[{prefix="~/a"}, {prefix="~b"}]', "data.valid=~/c", "checkpoints.init_from=~/d"]
    run = read_run_config("~/run.toml", "tiny", [parse_assignment(text) for text in changes])
    assert isinstance(run.data.train, tuple)
    found = (run.output, run.data.train[0].prefix, run.data.valid, run.checkpoints.init_from)
    assert [*map(Path, filter(None, found))] == [tmp_path / name for name in ("run", "a", "c", "d")]
    assert run.data.train[1].prefix == "~b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('data.train=[{prefix="a",weight=-1}]', r"data.train.0.weight: input should be greater .* \(got -1\)"),
        ('data.train=[{prefix="a",weights=1}]', r"unknown setting '.*0.weights'; did you mean 'data.train.0.weight'\?"),
        ("data.train=5", r"data.train: input should be a valid string or a valid list \(got 5\)"),
        ("model.options.inner={a=1}", "model.options.inner: input should be a valid boolean, .* or a valid string"),
        ("output=", r"output: string should have at least 1 character \(got ''\)"),
        ("output=s3://b/run", "output: a run folder is on a local or shared disk; give a path.*"),
    ],
)
def test_a_wrong_value_of_several_types_is_named_as_it_was_meant(change: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    with pytest.raises(UserError, match=f"^--set: {message}$"):
        read_run_config(file, "tiny", [parse_assignment(change)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --config"),
        (["--config", "run.toml", "--timeout", "0"], "argument --timeout: 0 is not above 0 and at most 604800 seconds"),
        (["--config", "run.toml", "--timeout", "soon"], "argument --timeout: soon is not above 0"),
        (["--config", "run.toml", "--sets"], "unknown option --sets; did you mean --set?"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gpt2train.train import main  # imports torch

    with pytest.raises(SystemExit) as ended:
        main(flags)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"error: {message}") and error.count("\n") == 1


few = st.integers(1, 40)


@given(few, few, few, few)
def test_any_two_sizes_give_the_third_and_three_have_to_agree(
    micro: int, processes: int, turns: int, other: int
) -> None:
    whole = micro * processes * turns
    for hidden in ("micro_batch", "global_batch", "gradient_accumulation_steps", None):
        given_ = {"micro_batch": micro, "global_batch": whole, "gradient_accumulation_steps": turns}
        if hidden:
            given_[hidden] = 0
        assert BatchSettings(**given_).sizes(processes) == (micro, whole, turns)
    if other != whole:
        with pytest.raises(UserError, match=f"batch.global_batch {other} is not"):
            BatchSettings(micro_batch=micro, global_batch=other, gradient_accumulation_steps=turns).sizes(processes)


@pytest.mark.parametrize(
    ("batch", "ramp", "message"),
    [
        ((4, 16, 0), None, "not a multiple of micro_batch 4 x 3 .* = 12; set it to 12 or 24, or"),
        ((4, 8, 0), None, "set it to 12, or change micro_batch"),
        ((0, 16, 4), None, "gradient_accumulation_steps 4 x 3 .* = 12; set it to 12 or 24"),
        ((2, 12, 3), None, "gradient_accumulation_steps 3 = 18; set one of the three to 0"),
        ((2, 0, 0), None, "at least two of"),
        ((2, 30, 0), (4, 13), "start 4 is not a multiple of micro_batch x data-parallel processes = 6; set it to 6"),
        ((2, 30, 0), (12, 8), "from 12 by 8 does not reach global_batch 30: 30 - 12 = 18 is not a multiple of 8"),
        ((2, 30, 0), (12, 9), "increment 9 is not a multiple of .* = 6; set it to 6 or 12"),
        ((2, 30, 0), (36, 6), "from 36 by 6 does not reach global_batch 30"),
    ],
)
def test_a_refusal_shows_the_calculation_and_the_nearest_size(batch: Any, ramp: Any, message: str) -> None:
    given_ = dict(zip(("micro_batch", "global_batch", "gradient_accumulation_steps"), batch, strict=True))
    ramp_up = RampUp(start=ramp[0], increment=ramp[1], samples=100) if ramp else None
    with pytest.raises(UserError, match=message):
        BatchSettings(**given_, ramp_up=ramp_up).sizes(3)


def megatron(plan: BatchPlan, samples: int) -> int:
    """Megatron-LM's rule of `--rampup-batch-size START INCREMENT SAMPLES`: equal samples for each increment."""
    assert plan.ramp is not None
    increments = (plan.size - plan.ramp.start) // plan.ramp.increment
    if samples > plan.ramp.samples or not increments:
        return plan.size
    return min(plan.size, plan.ramp.start + int(samples / (plan.ramp.samples / increments)) * plan.ramp.increment)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 12), st.integers(1, 5000), st.integers(0, 6000))
def test_the_size_equals_megatrons(start: int, increment: int, parts: int, length: int, samples: int) -> None:
    plan = BatchPlan(start + parts * increment, RampUp(start=start, increment=increment, samples=length))
    # At the very end of a part its division in floating point can fall short by one; ours is of integers.
    assume(parts == 0 or samples * parts % length)
    assert plan.size_at(samples) == megatron(plan, samples)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 12), st.integers(1, 3000))
def test_steps_and_samples_agree_with_counting_one_by_one(start: int, increment: int, parts: int, length: int) -> None:
    plan = BatchPlan(start + parts * increment, RampUp(start=start, increment=increment, samples=length))
    samples, step, sizes = 0, 0, []
    while samples < length + 3 * plan.size:
        assert plan.steps_until(samples) == step
        size = plan.size_at(samples)
        assert plan.steps_until(samples + 1) == plan.steps_until(samples + size) == step + 1
        sizes.append(size)
        samples, step = samples + size, step + 1
    assert sizes == sorted(sizes) and sizes[-1] == plan.size
    assert plan.sizes() == sorted(set(sizes))


@pytest.mark.parametrize(
    "there, expected",
    [
        (("b/out/tokens/train/tokens.idx",), "b/out/tokens/train/tokens"),
        (("b/out/tokens/train/tokens-00000-of-00001.idx",), "b/out/tokens/train/tokens"),
        (("a/out/tokens/train/tokens.idx", "b/out/tokens/train/tokens.idx"), "b/out/tokens/train/tokens"),  # a copy
        (("a/out/tokens/train/tokens.idx",), "a/out/tokens/train/tokens"),  # the run folder was copied alone
        ((), "a/out/tokens/train/tokens"),
    ],
)
@pytest.mark.parametrize("is_mixture", [False, True])
def test_places_move_with_a_run(there: tuple[str, ...], expected: str, is_mixture: bool, tmp_path: Path) -> None:
    out, run = tmp_path / "a/out", tmp_path / "b/out/runs/x"
    for path in (run / CONFIG_FILE, *(tmp_path / name for name in there)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    prefix = str(out / "tokens/train/tokens")
    train: Any = (Corpus(prefix=prefix), Corpus(prefix="/elsewhere/tokens")) if is_mixture else prefix
    start = TrainSettings.model_validate({"checkpoints": {"init_from": str(out / "runs/x")}})
    config = run_config(start, train=train, valid=prefix, vocab=9, tokenizer_hash=None, output=str(out / "runs/x"))
    (run / CONFIG_FILE).write_text(to_toml(config))
    read, moved = read_run_settings(run), str(tmp_path / expected)
    assert [corpus.prefix for corpus in read.data.corpora] == [moved, "/elsewhere/tokens"][: 1 + is_mixture]
    assert (read.data.valid, read.output, read.checkpoints.init_from) == (moved, str(run), str(run))
