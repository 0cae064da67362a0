"""Training runs of a table of layouts, each against one process."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gpt2train.config import RunConfig
from tests.gpt2train.forked_ranks import run_ranks
from tests.gpt2train.jobs import write
from tests.gpt2train.parity.test_matrix import HERE, worst

SECONDS = 1200.0

Table = Mapping[str, tuple[str, dict[str, Any]]]  # name of a run -> kind of its model, and layout


def job(configs: Iterable[RunConfig], processes: int) -> None:
    """Train some runs, one after the other, on a number of processes."""
    configs = list(configs)
    run_ranks(HERE / "train_runs.py", *map(write, configs), processes=processes, seconds=SECONDS)
    for config in configs:
        refusal = Path(config.output).with_suffix(".error")
        assert not refusal.exists(), refusal.read_text()


def check(run: Callable[..., RunConfig], tokens: Path, folder: Path, table: Table, processes: int) -> None:
    """Train the layouts of a table, and one process for each of their kinds of models.

    Args:
        run: function that returns the settings of a run: of tokens, output folder, kind and layout.
        tokens: token files.
        folder: folder of the runs.
        table: runs.
        processes: number of processes of each.
    """
    kinds = sorted({kind for kind, _ in table.values()})
    job([run(tokens, folder / f"one-{kind}", kind, {}) for kind in kinds], 1)
    job([run(tokens, folder / name, *row) for name, row in table.items()], processes)
    for name, (kind, _) in table.items():
        found = worst(folder / name, folder / f"one-{kind}")
        assert found["loss"] <= 1e-5 and found["valid_loss"] <= 1e-5, (name, found)
        # Of these small models another micro-batch on one process changes the norm by 1e-5 within 20 steps.
        assert found["grad_norm"] <= 1e-4, (name, found)
        assert found["weight"] <= 1e-3, (name, found)
