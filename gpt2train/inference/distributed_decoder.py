"""Model distributed over several processes, driven by rank 0.

Rank 0 broadcasts each call to all ranks as a few int64 numbers over gloo; then every rank runs its share of the call
(`gpt2train.inference.model_shard`). A message is a command and lists of numbers; nothing received is executed or
unpickled. Between calls rank 0 sends heartbeats, so that waiting ranks do not run into their timeout and a hung rank is
noticed. A waiting process sleeps in the kernel.
"""

import contextlib
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum, auto
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.errors import RunError
from gpt2train.inference.decoder import score_targets
from gpt2train.inference.model_shard import ModelShard
from gpt2train.launch import rank_store
from gpt2train.launch.exit_codes import LOST_CONTACT
from gpt2train.launch.rank_logs import write_raw_stderr
from gpt2train.launch.rank_process import is_lost_contact
from gpt2train.model.families import check_decoder_alone, context_length
from gpt2train.model.shape import Shape
from gpt2train.store.process import Heartbeat

FRAME = 64  # numbers in the first message; the rest of a longer one follows in a second message
HEARTBEATS = 4  # per timeout
EXIT_DELAY_SECONDS = 3.0  # from the loss of a process to the exit of this one; leaves time to answer requests


class Command(IntEnum):
    """Command that rank 0 sends to all ranks."""

    OPEN = auto()
    ADD = auto()
    STEP = auto()
    SELECT = auto()
    LOGITS = auto()
    SCORE = auto()
    HEARTBEAT = auto()
    STOP = auto()


class CommandChannel:
    """Broadcast of commands from rank 0 over gloo; a collective object that every rank creates."""

    def __init__(self, timeout: timedelta) -> None:
        self.group = dist.new_group(timeout=timeout, backend="gloo")

    def send(self, command: int, lists: Sequence[Sequence[int]]) -> None:
        """Broadcast a command with lists of numbers; for rank 0."""
        numbers = [command, 0, len(lists), *map(len, lists), *(number for one in lists for number in one)]
        numbers[1] = len(numbers)
        message = torch.tensor(numbers + [0] * (FRAME - len(numbers)))
        self._broadcast(message[:FRAME])
        if len(numbers) > FRAME:
            self._broadcast(message[FRAME:])

    def receive(self) -> tuple[int, list[list[int]]]:
        """Wait for the next command of rank 0; return it with its lists of numbers."""
        message = torch.empty(FRAME, dtype=torch.int64)
        self._broadcast(message)
        command, length, count = message[:3].tolist()
        if length > FRAME:
            rest = torch.empty(length - FRAME, dtype=torch.int64)
            self._broadcast(rest)
            message = torch.cat((message, rest))
        lengths, start, lists = message[3 : 3 + count].tolist(), 3 + count, []
        for size in lengths:
            lists.append(message[start : start + size].tolist())
            start += size
        return command, lists

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.all_reduce(torch.zeros(1), group=self.group)

    def _broadcast(self, message: Tensor) -> None:
        dist.broadcast(message, group=self.group, group_src=0)


Answer = Tensor | tuple[Tensor, Tensor] | None


def execute(shard: ModelShard, channel: CommandChannel, command: int, lists: Sequence[Sequence[int]]) -> Answer:
    """Run this rank's share of a command; the result is that of the command on rank 0, if it has one."""
    match command:
        case Command.OPEN:
            shard.open(*lists[0])
        case Command.ADD:
            return shard.decoder.add(lists)
        case Command.STEP:
            return shard.decoder.step(lists[0])
        case Command.SELECT:
            shard.decoder.select(lists[0])
        case Command.LOGITS:
            return shard.decoder.logits(lists[0])
        case Command.SCORE:
            *sequences, rows, positions, targets = lists
            return score_targets(shard.model, sequences, rows, positions, targets)
        case Command.HEARTBEAT:
            channel.barrier()
    return None


def follow(shard: ModelShard, channel: CommandChannel) -> None:
    """Run this rank's share of every command until rank 0 sends `STOP`."""
    while True:
        command, lists = channel.receive()
        if command == Command.STOP:
            return
        execute(shard, channel, command, lists)


class PeerLostError(RunError):
    """Another process of the model has ended or hangs, so that the model is unusable."""


class DistributedModel:
    """Distributed model on rank 0; thread-safe.

    When a process is lost, every call raises `PeerLostError`, and this process exits with code 3 within seconds: a lost
    process cannot rejoin, so that a server that stayed up could only refuse requests.

    Args:
        shard: this rank's shard.
        channel: channel to the other ranks.
        timeout: timeout of the channel; heartbeats are sent at a fraction of it.
    """

    def __init__(self, shard: ModelShard, channel: CommandChannel, timeout: timedelta) -> None:
        self.shape: Shape = shard.shape
        self.lost: str | None = None
        self.current: ParallelDecoder | None = None
        self._shard, self._channel = shard, channel
        self._lock = threading.Lock()
        self._heartbeat = Heartbeat(self._beat, timeout.total_seconds() / HEARTBEATS)

    def decoder(self, rows: int, context: int | None = None) -> "ParallelDecoder":
        """Create an empty decoder for `rows` sequences; earlier decoders of this model become invalid."""
        whole = context_length(self.shape)
        return ParallelDecoder(self, rows, min(context or whole, whole))

    def score(
        self,
        sequences: Sequence[Sequence[int]],
        rows: Sequence[int],
        positions: Sequence[int],
        targets: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Score targets as `gpt2train.evaluate.scoring_request.DistributedScorer` defines."""
        found = self.call(Command.SCORE, [*sequences, rows, positions, targets])
        return cast(tuple[Tensor, Tensor], found)

    def call(self, command: Command, lists: Sequence[Sequence[int]]) -> Answer:
        """Run a command on all ranks and return its result.

        Raises:
            PeerLostError: a rank has ended, or did not respond within the timeout.
        """
        with self._lock:
            if self.lost:
                raise PeerLostError(self.lost)
            try:
                self._channel.send(command, lists)
                answer = execute(self._shard, self._channel, command, lists)
            except (RuntimeError, dist.DistError) as error:
                if not is_lost_contact(error):
                    raise
                raise self._mark_lost(error) from error
            return answer

    def close(self) -> None:
        """Stop the other ranks.

        Raises:
            PeerLostError: a rank had already ended.
        """
        self._heartbeat.stop()
        if not self.lost:
            self.call(Command.STOP, [])

    def _mark_lost(self, error: BaseException) -> PeerLostError:
        hung = rank_store.hung_ranks(True) if "timed out" in str(error).lower() else None
        cause = f"{rank_store.ranks(hung)} gave no sign of life" if hung else "another process of the model is gone"
        self.lost = f"{cause}; nothing can be answered any more"
        timer = threading.Timer(EXIT_DELAY_SECONDS, _exit, (self.lost,))
        timer.daemon = True
        timer.start()
        return PeerLostError(self.lost)

    def _beat(self) -> bool:
        with contextlib.suppress(PeerLostError):
            self.call(Command.HEARTBEAT, [])
        return self.lost is None


def _exit(message: str) -> None:
    write_raw_stderr(f"error: {message}\n")
    os._exit(LOST_CONTACT)


class ParallelDecoder:
    """`gpt2train.inference.decoder.Decoder` of a distributed model."""

    def __init__(self, model: DistributedModel, rows: int, context: int) -> None:
        self.shape, self.rows, self.context = model.shape, rows, context
        self.lengths: list[int] = []
        self._model = model
        model.call(Command.OPEN, [[rows, context]])
        model.current = self

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        answer = self._call(Command.ADD, prompts)
        self.lengths += map(len, prompts)
        return cast(Tensor, answer)

    def step(self, tokens: Sequence[int]) -> Tensor:
        answer = self._call(Command.STEP, [tokens])
        self.lengths = [length + 1 for length in self.lengths]
        return cast(Tensor, answer)

    def select(self, sources: Sequence[int]) -> None:
        self._call(Command.SELECT, [sources])
        self.lengths = [self.lengths[source] for source in sources]

    def logits(self, tokens: Sequence[int]) -> Tensor:
        check_decoder_alone(self.shape, "the model")
        return cast(Tensor, self._call(Command.LOGITS, [tokens]))

    def _call(self, command: Command, lists: Sequence[Sequence[int]]) -> Answer:
        if self._model.current is not self:
            raise RuntimeError("this decoder is invalid: a newer one of the same model exists")
        return self._model.call(command, lists)
