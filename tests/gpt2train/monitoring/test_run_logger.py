"""Log lines, metrics and profile of a run while it trains."""

import json
import logging
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from gpt2train.monitoring.metrics import read_metrics
from gpt2train.monitoring.run_logger import epoch_line, step_line
from gpt2train.parallel.mesh import join
from gpt2train.train import train
from tests.gpt2train.jobs import make, write_tokens

ROW = {"step": 3, "loss": 2.0, "grad_norm": 0.5, "lr": 1e-3, "skipped": 0}
ROW |= {"tokens_per_second": 12345.6, "memory_gib": 1.5}


def test_a_line_has_the_values_that_are_known() -> None:
    assert step_line(ROW, 9) == "step 3/9 | loss 2.0000 | grad 0.50 | lr 1.00e-03 | 12,346 tokens/s | 1.50 GiB"
    more = {"mfu": 0.47, "loss_scale": 65536.0, "skipped": 2, "valid_loss": 2.25}
    assert step_line(ROW | more, 9).endswith("| MFU 47.0% | 1.50 GiB | scale 2^16 | skipped 2 | valid 2.2500")


def test_an_epoch_of_several_steps_gets_a_line_when_it_ends() -> None:
    rows = [{"step": step, "loss": float(step), "epoch": 0.4 * step} for step in range(1, 6)]
    lines = [epoch_line(rows[:count]) for count in range(6)]
    assert lines[3:] == ["epoch 1 | steps 1 to 3 | mean loss 2.0000", None, "epoch 2 | steps 4 to 5 | mean loss 4.5000"]
    assert lines[:3] == [None] * 3
    validated = [*rows[:4], rows[4] | {"valid_loss": 3.0, "loss": None}]
    assert epoch_line(validated) == "epoch 2 | steps 4 to 5 | mean loss 4.0000, valid 3.0000"
    assert epoch_line([{"step": 1, "loss": 1.0, "epoch": 1.0}, {"step": 2, "loss": 1.0, "epoch": 2.0}]) is None


class Listener(logging.Handler):
    """Handler that keeps the logged messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.mark.exhaustive
def test_a_run_logs_its_steps_and_records_a_profile(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    listener, log = Listener(), logging.getLogger("gpt2train")
    request.addfinalizer(partial(log.setLevel, log.level))
    request.addfinalizer(partial(log.removeHandler, listener))
    log.setLevel(logging.INFO)
    log.addHandler(listener)
    settings = {"profile": 2, "interval": 25, "tensorboard": False}
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=60, schedule={"warmup": 40}, logging=settings)
    ctx = join("cpu")
    train(config, ctx)
    dist.destroy_process_group()
    logged = listener.messages
    assert any(text.startswith("warning: the warm-up takes 40 of 60 steps") for text in logged)
    steps = [text.split(" |")[0] for text in logged if text.startswith("step ")]
    assert steps == [f"step {step}/60" for step in (1, 10, 20, 25, 30, 40, 50, 60)]
    rows = read_metrics(config.output)
    assert len(rows) == 60 and all(0.05 < row["memory_gib"] < 64 for row in rows)
    trace = json.loads((tmp_path / "run" / "profile" / "rank-0.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("aten::_fused_adamw_") == 4  # two groups in each of the two recorded steps
    assert "aten::addmm" in (tmp_path / "run" / "profile" / "rank-0.txt").read_text()
