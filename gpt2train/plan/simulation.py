"""Simulated ranks of settings that name no data; imports torch on the first simulation alone."""

from typing import TYPE_CHECKING

from gpt2train.config import RunConfig, TrainSettings
from gpt2train.parallel.layout import Layout
from gpt2train.settings import build

if TYPE_CHECKING:
    from gpt2train.simulate.kinds import RankKind


def simulated(settings: TrainSettings, vocab: int, layout: Layout, rank: int | None) -> list["RankKind"]:
    """Simulate one rank of a run, or with None one of every kind.

    Raises:
        UserError: the layout does not fit the model or the batch.
    """
    from gpt2train.simulate.kinds import all_kinds, kind_of  # imports torch (2 s)

    run = {"vocab": vocab, "output": "-", "data": {"train": "-"}}
    config = build(RunConfig, settings.model_dump(exclude={"mixture"}), run)
    return all_kinds(config, layout.world) if rank is None else [kind_of(config, layout.world, rank)]


def on_cpu(settings: TrainSettings, memory: dict[str, int]) -> int:
    """Bytes of a rank's memory that offload keeps in the CPU's memory; 0 of a run on CPUs."""
    p = settings.parallel
    if settings.device == "cpu" or not p.cpu_offload:
        return 0
    names = ("parameters", "gradients", "optimizer") if p.offloads_weights else ("optimizer",)
    return sum(memory[name] for name in names)
