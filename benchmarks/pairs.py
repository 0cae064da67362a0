"""Time ours and peers in turn, and print medians and ratios.

The machines that this runs on are noisy: what counts is the ratio of runs that lie next to each other, never a figure
from another day.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def compare(
    title: str,
    unit: str,
    amount: float,
    contestants: Mapping[str, Callable[[], Any]],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Run every contestant once to warm up, then `rounds` times in turn; print amounts a second and ratios.

    Args:
        title: what is measured.
        unit: of the amount (`docs`, `MB`, `pages`).
        amount: how much one call does.
        contestants: name -> call. The first is ours; the ratio of each other is ours over it.
        rounds: measured calls of each.
        clock: seconds; `time.process_time` for what computes on one core of a machine that others use too.

    Returns:
        Median amount a second, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, call in contestants.items():
            started = clock()
            call()
            if turn:
                seconds[name].append(clock() - started)
    print(f"{title} ({amount:,.6g} {unit} a call, {rounds} rounds)")
    return table(unit, amount, seconds)


def table(unit: str, amount: float, seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Print the amount a second of each contestant, its spread and the ratio of ours (the first) over it.

    Args:
        unit: of the amount.
        amount: how much was done in each round.
        seconds: of each round, by name; the rounds of all lie side by side.

    Returns:
        Median amount a second, by name.
    """
    rates = {name: amount / statistics.median(taken) for name, taken in seconds.items()}
    ours, *_ = seconds
    for name, rate in rates.items():
        # Ratios round by round: what disturbs one round disturbs both sides of it.
        ratio = statistics.median(b / a for a, b in zip(seconds[ours], seconds[name], strict=True))
        spread = f"{amount / max(seconds[name]):,.4g}–{amount / min(seconds[name]):,.4g}"
        print(f"  {name:<28} {rate:>12,.4g} {unit}/s  ({spread})" + ("" if name == ours else f"   ours = {ratio:.2f}x"))
    return rates


def machine() -> str:
    """One line about the machine, for the results."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} usable cores, {platform.machine()}, Python {platform.python_version()}, {sys.platform}"
