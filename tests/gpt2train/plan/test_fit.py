"""Resource estimate of a run, and the list of missing resources."""

import pytest

from gpt2train.config import TrainSettings, preset
from gpt2train.model.families import parameter_count
from gpt2train.plan.devices import Gpu
from gpt2train.plan.fit import duration, estimate_resources, missing_resources
from gpt2train.settings import build

H200 = tuple(Gpu(n, f"GPU-{n}", "NVIDIA H200", 150.8) for n in range(8))
SMALL = tuple(Gpu(n, f"GPU-{n}", "NVIDIA L4", 8.0) for n in range(2))


def settings_of(name: str, **changes: object) -> TrainSettings:
    return build(TrainSettings, preset(name), changes)


def test_all_missing_resources_of_a_large_model_on_a_cpu_are_listed() -> None:
    settings = settings_of("345m")
    fit = estimate_resources(settings, 50257, (), processes=8, cores=2)
    gpus, time, memory = missing_resources(fit, settings)
    assert gpus == "8 GPUs (none found)"
    assert "years on this CPU" in time
    assert memory.startswith("memory (")
    forced = settings_of("345m", device="cpu")
    assert missing_resources(estimate_resources(forced, 50257, (), processes=8, cores=2), forced) == []


def test_a_small_model_fits() -> None:
    settings = settings_of("tiny")
    fit = estimate_resources(settings, 4096, (), processes=2, cores=2)
    assert missing_resources(fit, settings) == []
    assert not fit.on_gpu
    # Measured on two quiet cores: 3,783 tokens/s a core (docs/develop/benchmarks.md).
    assert fit.tokens / fit.hours / 3600 == pytest.approx(2 * 3783, rel=0.25)
    assert fit.checkpoints == 4 * 12 * fit.parameters  # two kept, the best, the one that is written


def test_another_family_is_estimated_by_its_own_parameters() -> None:
    llama = settings_of("tiny", model={"family": "llama", "options": {"inner": 1024}})
    fit = estimate_resources(llama, 4096, (), processes=2, cores=2)
    assert fit.parameters == parameter_count(llama.model.shape(4096))


def test_too_few_or_too_small_gpus_are_reported() -> None:
    settings = settings_of("345m")
    assert missing_resources(estimate_resources(settings, 50257, H200, processes=8, cores=64), settings) == []
    gpus, _time, *_ = missing_resources(estimate_resources(settings, 50257, H200[:4], processes=8, cores=2), settings)
    assert gpus == "8 GPUs (4 found)"
    [memory] = missing_resources(estimate_resources(settings, 50257, SMALL, processes=2, cores=2), settings)
    assert memory.startswith("GPU memory (") and memory.endswith("7.4 GB available)")


def test_the_time_on_gpus_scales_with_their_number() -> None:
    settings = settings_of("345m")
    one = estimate_resources(settings, 50257, H200[:1], processes=1, cores=16)
    eight = estimate_resources(settings, 50257, H200, processes=8, cores=16)
    assert 6 < one.hours / eight.hours < 8.5
    assert one.tokens == 20_000 * 512 * 1024
    assert "989 TFLOP/s" in one.basis
    guessed = estimate_resources(settings, 50257, (Gpu(0, "x", "Something New", 80.0),), processes=1, cores=16)
    assert "a guess" in guessed.basis


def test_epochs_need_the_number_of_tokens() -> None:
    settings = settings_of("tiny", epochs=2)
    unknown = estimate_resources(settings, 4096, (), processes=2, cores=2)
    assert (unknown.steps, unknown.tokens, unknown.hours) == (None, None, None)
    assert unknown.checkpoints == 4 * 12 * unknown.parameters and missing_resources(unknown, settings) == []
    known = estimate_resources(settings, 4096, (), processes=2, cores=2, per_epoch=3906)
    assert known.steps == -(-2 * 3906 // 8)  # samples in steps of 8
    assert known.tokens == known.steps * 8 * 256
    plain = estimate_resources(settings_of("tiny", steps=known.steps), 4096, (), processes=2, cores=2)
    assert known.hours == plain.hours


@pytest.mark.parametrize(
    ("hours", "said"),
    [(0.001, "1 minute"), (1.0, "60 minutes"), (30, "30 hours"), (240, "10 days"), (87600, "10 years")],
)
def test_durations_are_formatted(hours: float, said: str) -> None:
    assert duration(hours) == said
