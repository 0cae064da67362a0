"""Simulation of the best layouts of a plan, which decides whether they fit."""

from dataclasses import replace

from gpt2train.plan.hardware import GB, Hardware
from gpt2train.plan.search import Candidate, Plan, offload_of
from gpt2train.plan.simulation import on_cpu, simulated

BEST = 5  # layouts that are simulated, at 2 to 20 s each


def refereed(plan: Plan, vocab: int, hardware: Hardware) -> tuple[Plan, list[tuple[Candidate, int]]]:
    """Simulate the best layouts, and exclude those that need more memory than there is.

    Of each layout the pipeline rank is simulated that needs most by the plan's formulas. Layouts whose optimizer state
    fills the device (offload `auto`) are not simulated.

    Args:
        plan: result of the search.
        vocab: vocabulary size.
        hardware: GPUs of the job.

    Returns:
        The plan without the excluded layouts, and the simulated ones with their bytes on the device.
    """
    available = hardware.memory * GB * (1 - hardware.reserve)
    measured, refused = [], list(plan.refused)
    fits = list(plan.fits)
    for candidate in plan.fits[:BEST]:
        if offload_of(candidate.settings.parallel) == "auto":
            continue
        stage = candidate.memories.index(candidate.memory)
        rank = stage * (candidate.layout.world // candidate.layout.pp)
        (kind,) = simulated(candidate.settings, vocab, candidate.layout, rank)
        device = kind.step.peak - on_cpu(candidate.settings, kind.step.memory)
        measured.append((candidate, device))
        if device > available:
            fits.remove(candidate)
            p = candidate.settings.parallel
            name = f"tp {p.tp} x pp {p.pp}, ZeRO {p.zero}"
            refused.append((f"{name}: simulated {device / GB:.1f} GB, more than {available / GB:.1f} GB", 1))
    return replace(plan, fits=fits, refused=refused), measured
