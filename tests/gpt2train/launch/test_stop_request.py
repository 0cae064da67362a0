"""Stop requests: during a validation, and repeated ones."""

import contextlib
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from gpt2train.checkpoint.manifest import verify
from gpt2train.launch.exit_codes import LAUNCHER
from gpt2train.launch.rank_process import SIGNAL_DEBOUNCE_SECONDS, StopRequest
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.parallel.mesh import DistContext
from gpt2train.store.process import CLOSING, MULTIPLEXERS
from gpt2train.store.run_folder import newest_checkpoint
from gpt2train.train import train
from tests.gpt2train.jobs import make, write, write_tokens
from tests.processes import read_terminal, wait_for


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
    assert verify(newest_checkpoint(config.output)).position == position
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


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_is_a_request_where_no_launcher_forwards_it(
    monkeypatch: pytest.MonkeyPatch, launched: bool, ignored: bool
) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setenv(LAUNCHER, "1") if launched else monkeypatch.delenv(LAUNCHER, raising=False)
    stop = StopRequest()
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        stop.install()
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.requested is not (launched or ignored)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", [["gpt2train.train"], ["gpt2train.launch", "--", "-m", "gpt2train.train"]])
def test_a_training_whose_terminal_is_closed_saves_its_step(tmp_path: Path, entry: list[str]) -> None:
    config = make(write_tokens(tmp_path), tmp_path / "run", steps=100_000, checkpoints={"interval": 100_000})
    command = [sys.executable, "-m", *entry, "--config", write(config)]
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {name: value for name, value in os.environ.items() if name not in MULTIPLEXERS}
        os.execve(command[0], command, environment | {"OMP_NUM_THREADS": "1"})
    shown = read_terminal(terminal)
    try:
        wait_for(lambda: len(read_metrics(config.output)) >= 5, 200, "five steps")
        assert CLOSING.encode() in shown
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert verify(newest_checkpoint(config.output)).position.step == read_metrics(config.output)[-1]["step"] >= 5
