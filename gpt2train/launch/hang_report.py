"""Report of a hang: the collective in which each rank waits, its group, since when, and the Python stack of each rank.

Nothing is recorded while a job runs. When a collective has timed out, the ranks whose collectives failed find theirs in
the frames of their traceback, where torch's functions still hold tensors and group. A rank that hangs answers from a
thread (`answer_hangs`), which is blocked in the store until then, or looks into a file store every second. One that is
stopped, or is in native code that keeps the interpreter's lock, does not answer, and is reported as such.
"""

import contextlib
import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, cast

import psutil
import torch
import torch.distributed as dist

Frames = Sequence[tuple[FrameType, int]]  # frames with their lines, outermost first

TORCH = str(Path(torch.__file__).parent)
COLLECTIVES = str(Path(TORCH, "distributed", "distributed_c10d.py"))
# Frames that are not the place where a program calls a collective.
WRAPPERS = (TORCH, contextlib.__file__, "gpt2train/compat/", "gpt2train/training/phases.py", "typing_extensions.py")
MAX_STACK = 20_000  # characters of the stacks of one rank
WAIT = timedelta(days=30)
POLL_SECONDS = 1.0
PLURAL = {"waits": "wait", "is": "are", "does": "do"}


@dataclass(frozen=True)
class RankState:
    """State of a rank during a hang."""

    place: str  # collective in which the rank waits, with group and line, or else the line at which it is
    collective: str  # the collective, the same text for ranks that wait in the same one; empty if it waits in none
    stack: str  # Python stacks of its threads
    host: str = ""
    pid: int = 0


def state_of(frames: Frames, stack: str) -> RankState:
    """Describe what a thread with these frames does."""
    where = _line(frames)
    found = _collective(frames)
    if found is None:
        return RankState(f"is at {where}", "", stack)
    since = next((frame.f_locals["waits_since"] for frame, _ in frames if "waits_since" in frame.f_locals), None)
    waited = "" if since is None else f" for {time.monotonic() - since:.0f} s"
    return RankState(f"waits{waited} in {found} at {where}", found, stack)


def failed_state(error: BaseException, tb: TracebackType | None) -> RankState:
    """State of this process, whose collective failed with an error."""
    return state_of(list(traceback.walk_tb(tb)), "".join(traceback.format_exception(error))[-MAX_STACK:])


def own_state() -> RankState:
    """State of the main thread of this process, asked for in another thread."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"{names.get(ident, 'thread')}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sorted(frames.items(), key=lambda item: item[0] != main)
        if ident != threading.get_ident()
    ]
    walked = [] if main is None else list(traceback.walk_stack(frames[main]))[::-1]
    return state_of(walked, "\n".join(stacks)[:MAX_STACK])


def _line(frames: Frames) -> str:
    """Line of the program in the frames, `engine.py:236 in measure`."""
    own = [item for item in frames if not any(part in item[0].f_code.co_filename for part in WRAPPERS)]
    if not (own or frames):
        return "an unknown line"
    frame, line = (own or frames)[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line} in {frame.f_code.co_name}"


def _collective(frames: Frames) -> str | None:
    """Describe the innermost collective of torch in the frames; None if there is none."""
    for frame, _ in reversed(frames):
        local = frame.f_locals
        if frame.f_code.co_filename == COLLECTIVES and frame.f_code.co_name != "wrapper":
            tensor = next(_tensors(local), None)
            shape = "" if tensor is None else f" of {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            return f"{frame.f_code.co_name}{shape}{_group(local.get('group'))}"
    work = next((frame.f_locals["self"] for frame, _ in frames if "waits_since" in frame.f_locals), None)
    if work is None:
        return None
    from gpt2train.compat.torch import work_kind  # imported at a hang alone, since it takes 0.5 s

    # A collective that was started before: only its kind is known here, and the group by the frames around it.
    groups = (value for frame, _ in reversed(frames) for value in frame.f_locals.values())
    group = next((value for value in groups if isinstance(value, dist.ProcessGroup)), None)
    return f"{work_kind(work)}{'' if group is None else _group(group)}"


def _tensors(local: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for value in local.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, torch.Tensor))


def _group(group: Any) -> str:
    """Format a group and the number of its last collective: ` (group tp of ranks 0, 1; number 41)`."""
    from gpt2train.compat.torch import sequence_number

    with contextlib.suppress(RuntimeError, ValueError, KeyError):
        known = group if isinstance(group, dist.ProcessGroup) else cast(dist.ProcessGroup, dist.group.WORLD)
        ranks = ", ".join(map(str, dist.get_process_group_ranks(known)[:8]))
        more = ", …" if known.size() > 8 else ""
        name = known.group_desc if known.group_desc != "undefined" else "all"
        number = sequence_number(known)
        return f" (group {name.removesuffix('_pg')} of ranks {ranks}{more}" + (f"; number {number})" if number else ")")
    return ""


def record_nccl(environment: MutableMapping[str, str], logs: Path) -> None:
    """Let NCCL's flight recorder write `nccl-trace-N` to the folder of the logs on a timeout; before torch uses NCCL.

    NCCL's watchdog then aborts the process, so that no report of the ranks is made; `torchfrtrace` reads the files.
    Names of the variables: torch's "ProcessGroupNCCL Environment Variables".
    """
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    environment.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(logs / "nccl-trace-"))
    environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def answer_hangs(store: dist.Store, rank: int, polls: bool) -> None:
    """Write this rank's state to a store, from a thread, when another rank asks for it.

    The store has a connection of its own, since waiting blocks it. A file store would wait by reading its file a
    hundred times a second; with `polls` it is looked into every second.
    """
    store.set(f"process/{rank}", json.dumps([socket.gethostname(), psutil.Process().pid]))

    def run() -> None:
        with contextlib.suppress(dist.DistError, RuntimeError):  # the store is gone, and with it the job
            while polls and not store.check([f"wake/{rank}"]):
                time.sleep(POLL_SECONDS)
            store.wait([f"wake/{rank}"], WAIT)
            if store.get(f"wake/{rank}") == b"hang":
                # Not in place of the state that this process has written when its collective failed.
                store.compare_set(f"state/{rank}", "", json.dumps(asdict(own_state())))

    threading.Thread(target=run, name="hang report", daemon=True).start()


def publish(store: dist.Store, rank: int, state: RankState) -> None:
    """Write the state of this rank to the store."""
    store.set(f"state/{rank}", json.dumps(asdict(state)))


def ask(store: dist.Store, world: int) -> None:
    """Ask all ranks that run for their states."""
    for rank in range(world):
        store.set(f"wake/{rank}", "hang")


def collect(store: dist.Store, world: int) -> list[RankState]:
    """Read the states of all ranks; of one that did not answer, what its process shows."""
    return [_read(store, rank) for rank in range(world)]


def _read(store: dist.Store, rank: int) -> RankState:
    host, pid = json.loads(store.get(f"process/{rank}")) if store.check([f"process/{rank}"]) else ("", 0)
    if store.check([f"state/{rank}"]):
        return RankState(**json.loads(store.get(f"state/{rank}")) | {"host": host, "pid": pid})
    status = "it is stopped, or in native code"
    if host == socket.gethostname():
        with contextlib.suppress(psutil.Error):
            status = f"its process {pid} is {psutil.Process(pid).status()}"
    return RankState(f"does not answer: {status}", "", "", host, pid)


def summary(states: Sequence[RankState]) -> str:
    """Summarize the states in one line, with one part for the ranks that wait in the same collective."""
    groups: dict[str, list[int]] = {}
    for rank, state in enumerate(states):
        groups.setdefault(state.collective or state.place, []).append(rank)
    parts = []
    for members in groups.values():
        numbers = ", ".join(map(str, members[:8])) + (f" and {len(members) - 8} more" if len(members) > 8 else "")
        verb, _, rest = states[members[0]].place.partition(" ")
        parts.append(f"ranks {numbers} {PLURAL[verb]} {rest}" if len(members) > 1 else f"rank {numbers} {verb} {rest}")
    return "; ".join(parts)


def write_report(states: Sequence[RankState], folder: Path) -> Path:
    """Write the states with all stacks to `hang-<time>.txt` (UTC) in the folder of the logs."""
    path = folder / f"hang-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.txt"
    lines = [f"rank {rank} on {s.host or 'an unknown machine'}: {s.place}" for rank, s in enumerate(states)]
    stacks = [f"stack of rank {rank}:\n{state.stack or '(none)'}" for rank, state in enumerate(states)]
    path.write_text("\n".join([*lines, "", *stacks]) + "\n", encoding="utf-8")
    return path
