"""Paired differences over seeds: intervals, verdicts, and the number of seeds for a difference; does not import torch.

Each seed trains both arms from the same weights on documents that no other seed has, so that the differences of the
seeds are independent. Their t interval covers weights, order and the sample of training documents. The sample of
held-out documents, which all seeds share, is covered by a bootstrap over these documents; the two variances add up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ERROR_RATE = 0.02  # of a comparison, shared among its held-out sets and tasks (Bonferroni)
POWER = 0.8
MAX_SEEDS = 100
RESAMPLES = 1000
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class Difference:
    """Bits per byte of A less those of B on one set; positive where B is better."""

    mean: float  # mean over the seeds
    half_width: float  # half the width of the interval
    seed_deviation: float  # standard deviation over the seeds
    heldout_error: float  # standard error from the sample of held-out documents
    values: tuple[float, ...]  # difference of each seed

    @property
    def better(self) -> str | None:
        """Arm with the lower bits per byte, `A` or `B`; None if the interval contains 0."""
        if abs(self.mean) <= self.half_width:
            return None
        return "B" if self.mean > 0 else "A"


def paired_difference(first: npt.ArrayLike, second: npt.ArrayLike, sizes: npt.ArrayLike, sets: int = 1) -> Difference:
    """Compute the difference of two arms on one set.

    Args:
        first: bits of each document under the models of A, float64 [seeds, documents].
        second: the same of B.
        sizes: bytes of each document, [documents].
        sets: sets that the error rate is shared among.
    """
    bits = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    lengths = np.asarray(sizes, np.float64)
    seeds, documents = bits.shape
    values = bits.sum(axis=1) / lengths.sum()
    deviation = float(values.std(ddof=1))
    drawn = np.random.default_rng(0).integers(0, documents, (RESAMPLES, documents))
    error = float((bits.mean(axis=0)[drawn].sum(axis=1) / lengths[drawn].sum(axis=1)).std(ddof=1))
    tail = 1 - ERROR_RATE / sets / 2
    quantile, of_documents = student_t(tail, seeds - 1), student_t(tail, max(documents - 1, 1))
    half = math.hypot(quantile * deviation / math.sqrt(seeds), of_documents * error)
    return Difference(float(values.mean()), half, deviation, error, tuple(map(float, values)))


def seeds_needed(difference: float, deviation: float, sets: int = 1) -> int | None:
    """Return the seeds with which a true difference in bits per byte is found, as `detectable`; None above 100."""
    return next((n for n in range(2, MAX_SEEDS + 1) if detectable(n, deviation, sets) <= difference), None)


def detectable(seeds: int, deviation: float, sets: int = 1) -> float:
    """Return the difference in bits per byte that a number of seeds finds with a probability of about 80 %.

    `deviation` is the standard deviation of the paired differences over seeds; `sets` share the error rate.
    """
    quantiles = student_t(1 - ERROR_RATE / sets / 2, seeds - 1) + student_t(POWER, seeds - 1)
    return quantiles * deviation / math.sqrt(seeds)


def student_t(probability: float, freedom: int) -> float:
    """Quantile of Student's t distribution with some degrees of freedom, for a probability of at least one half.

    With t = sqrt(freedom) tan(a), the density is a power of cos(a), which Gauss-Legendre quadrature integrates. The
    relative error is below 1e-7 up to 100,000 degrees.
    """
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def is_below(value: float) -> bool:
        half = math.atan(value / math.sqrt(freedom)) / 2
        return 0.5 + scale * half * float(WEIGHTS @ np.cos(half * (NODES + 1)) ** (freedom - 1)) < probability

    low, high = 0.0, 1.0
    while is_below(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def sentence(differences: Sequence[tuple[str, Difference]], names: tuple[str, str] = ("A", "B")) -> str:
    """Return the verdict in words, such as "B better by 0.0210 ± 0.0060 bits per byte on web, no difference on …"."""
    parts = []
    for name, found in sorted(differences, key=lambda pair: not pair[1].better):
        if found.better:
            winner = names[found.better == "B"]
            parts.append(f"{winner} better by {abs(found.mean):.4f} ± {found.half_width:.4f} bits per byte on {name}")
        else:
            parts.append(f"no difference on {name} ({found.mean:+.4f} ± {found.half_width:.4f})")
    return ", ".join(parts)
