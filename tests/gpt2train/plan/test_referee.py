"""Plans whose memory is that of simulated steps."""

import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import TrainSettings
from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.referee import refereed
from gpt2train.plan.search import Candidate, GivenLayout, available_bytes, search
from gpt2train.plan.simulation import simulated
from gpt2train.settings import build

VOCAB = 512
MODEL = {"layers": 4, "heads": 4, "hidden": 128, "context": 128}
GIVEN = {"model": MODEL, "batch": {"global_batch": 64, "micro_batch": 8}, "precision": "bf16"}
SETTINGS = build(TrainSettings, GIVEN)
SHAPE = SETTINGS.model.shape(VOCAB)
FORMULA = "formula"


def planned(memory: float, tolerance: float = 0.25, **given: int | str) -> tuple[list[Candidate], list[str], Hardware]:
    hardware = Hardware(gpus=2, memory=memory)
    layout = GivenLayout.model_validate({"activation_checkpointing": "none"} | given)
    plan = refereed(search(SETTINGS, SHAPE, hardware, layout, tolerance), VOCAB, hardware)
    fits = [one for one in plan.fits if not one.settings.parallel.cpu_offload]
    return fits, [reason for reason, _ in plan.refused], hardware


@pytest.mark.slow
def test_the_memory_of_each_pipeline_rank_is_that_of_a_simulated_step() -> None:
    (found,), _, _ = planned(8, tp=1, pp=2, zero=0, micro_batch=4)
    kinds = simulated(found.settings, VOCAB, found.layout, None)
    off = build(TrainSettings, GIVEN, {"performance": {"compile": "off"}})
    given = GivenLayout(tp=1, pp=2, zero=0, micro_batch=4, activation_checkpointing="none")
    (plain,) = (one for one in search(off, SHAPE, Hardware(gpus=2), given).fits if one.key == found.key)
    changes = [one.device - other.device for one, other in zip(found.memories, plain.memories, strict=True)]
    assert min(changes) < 0
    assert found.on_device == tuple(kind.step.peak + change for kind, change in zip(kinds, changes, strict=True))
    assert found.on_device == tuple(sum(memory.values()) for memory in found.simulated)
    assert found.device == max(found.on_device) != found.memory.device


@pytest.mark.slow
def test_a_layout_that_does_not_fit_gives_way_to_one_that_needs_less() -> None:
    (large,), _, _ = planned(8, tp=1, pp=1, zero=0)
    kept = large.layout.micro_batch
    assert kept > 1
    memory = 0.98 * large.device / GB / (1 - Hardware().reserve)  # by the formula within the tolerance
    (found,), reasons, hardware = planned(memory, tp=1, pp=1, zero=0)
    assert found.layout.micro_batch < kept and found.device <= available_bytes(hardware)
    assert any(reason.startswith("tp 1 x pp 1, ZeRO 0: 0.") for reason in reasons)


@pytest.mark.slow
def test_the_stream_of_a_gpu_is_simulated_in_half_precision() -> None:
    peaks = {}
    for stream in ("auto", "bf16", "fp32"):
        settings = build(TrainSettings, GIVEN, {"performance": {"stream": stream}, "device": "cuda"})
        layout = search(settings, SHAPE, Hardware(gpus=1), GivenLayout(micro_batch=8)).fits[0].layout
        peaks[stream] = simulated(settings, VOCAB, layout, 0)[0].step.peak
    assert peaks["auto"] == peaks["bf16"] < peaks["fp32"]


@pytest.mark.exhaustive
def test_the_command_says_which_memory_is_a_formula(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--preset", "117m", "--gpus", "2", "--tp", "2", "--pp", "1", "--zero", "0", "--micro-batch", "4"]
    flags += ["--activation-checkpointing", "none"]
    cells = {}
    for name, more in (("simulated", []), (FORMULA, ["--no-simulate"])):
        assert run_command(app, ["plan", *flags, *more]) == 0
        row = capsys.readouterr().out.splitlines()[2].split()
        assert row[:4] == ["2", "1", "1", "0"]
        cells[name] = row[9]
    assert cells[FORMULA].startswith("~")
    assert float(cells["simulated"]) == pytest.approx(float(cells[FORMULA][1:]), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputed_blocks_with_position_biases_can_be_simulated_for_a_gpu(mode: str) -> None:
    """Attention is that of a GPU in the recomputation too, which is part of the backward pass."""
    t5 = {"model": {"family": "t5"}, "objective": {"name": "span_corruption"}}
    recompute = {"parallel": {"activation_checkpointing": mode}, "device": "cuda"}
    settings = build(TrainSettings, GIVEN, t5, recompute)
    plain = build(TrainSettings, GIVEN, t5, {"device": "cuda"})
    layout = search(SETTINGS, SHAPE, Hardware(gpus=1), GivenLayout(micro_batch=8)).fits[0].layout
    peaks = [simulated(one, VOCAB, layout, 0)[0].step.peak for one in (settings, plain)]
    assert 0 < peaks[0] < peaks[1]
