"""Stop requests: during a validation, and repeated ones."""

import signal
from pathlib import Path

import pytest

from gpt2train.checkpoint import store
from gpt2train.io.run_folder import newest_checkpoint
from gpt2train.launch.rank_process import SIGNAL_DEBOUNCE_SECONDS, StopRequest
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.jobs import make, write_tokens


class AskedAt(StopRequest):
    """Stop request that holds from its n-th check on."""

    def __init__(self, look: int) -> None:
        self.look = look

    @property
    def requested(self) -> bool:  # type: ignore[override]
        self.look -= 1
        return self.look <= 0


@pytest.mark.exhaustive
def test_a_stop_request_ends_a_validation(tmp_path: Path, alone: DistContext) -> None:
    # 16 micro-batches of validation check twice; the steps before check once each.
    changes = {"batch": {"micro_batch": 1, "global_batch": 2}, "validation": {"interval": 3, "samples": 16}}
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=30, **changes)
    position = train(config, alone, AskedAt(3 + 2))
    rows = read_metrics(config.output)
    assert position.step == 3 and "valid_loss" not in rows[-1]
    assert store.verify(newest_checkpoint(config.output)).position == position
    assert train(config, alone).step == 30
    assert "valid_loss" in read_metrics(config.output)[-1]


def test_signals_within_a_second_are_one_request_and_a_later_one_ends_at_once() -> None:
    stop = StopRequest()
    stop._on_signal(signal.SIGTERM, None)
    stop._on_signal(signal.SIGINT, None)
    assert stop.requested
    stop._since -= 2 * SIGNAL_DEBOUNCE_SECONDS
    with pytest.raises(KeyboardInterrupt):
        stop._on_signal(signal.SIGTERM, None)
