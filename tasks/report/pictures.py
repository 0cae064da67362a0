"""Plots of a run as `data:` URLs of PNG images, for `<img src>`; drawn without a display."""

import base64
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np

from gpt2train.monitoring.chart import BLUE, INK, RED, SOFT, panels, png

log = logging.getLogger("gpt2train")
P = ParamSpec("P")


def _or_none(draw: Callable[P, str]) -> Callable[P, str | None]:
    """Return None, with a warning, where drawing fails: a report without a picture is still a report."""

    @functools.wraps(draw)
    def attempt(*arguments: P.args, **options: P.kwargs) -> str | None:
        try:
            return draw(*arguments, **options)
        except Exception as error:  # noqa: BLE001 - of matplotlib, its fonts or its cache folder
            log.warning("warning: no picture: %s: %s", type(error).__name__, error)
            return None

    return attempt


@_or_none
def loss_curve(records: Sequence[dict[str, Any]], steps: int | None = None, unit: str = "token") -> str:
    """Plot training and validation loss over the steps.

    Args:
        records: rows of `metrics.jsonl` with `step`, `loss` and optionally `valid_loss`.
        steps: last step of the run; fixes the axis during the run.
        unit: what the loss is a mean over.
    """
    [axes] = panels(1, 3.4)
    trained = [(r["step"], r["loss"]) for r in records if r.get("loss") is not None]
    valid = [(r["step"], r["valid_loss"]) for r in records if r.get("valid_loss") is not None]
    if trained:
        axes.plot(*zip(*_thin(trained), strict=True), color=BLUE, linewidth=1.0, alpha=0.35)
        axes.plot(*zip(*_thin(_smooth(trained)), strict=True), color=BLUE, linewidth=1.8, label="training (smoothed)")
    if valid:
        axes.plot(*zip(*valid, strict=True), color=RED, marker="o", markersize=4, linewidth=1.4, label="validation")
    if steps:
        axes.set_xlim(0, steps)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel(f"loss, nats per {unit}", color=INK)
    if trained or valid:
        axes.legend(frameon=False)
    return _data_url(axes)


@_or_none
def score_curve(validations: Sequence[dict[str, Any]], majority: float | None) -> str:
    """Plot accuracy and F1 over the validations of a classification; the selected one is marked.

    Args:
        validations: rows with `step`, `accuracy`, `f1` and `selected`.
        majority: accuracy of always predicting the most frequent class, drawn as a line.
    """
    [axes] = panels(1, 2.9)
    for name, color in (("accuracy", BLUE), ("f1", RED)):
        points = [(row["step"], row[name]) for row in validations if name in row]
        if points:
            label = name.capitalize()
            axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=1.6, label=label)
    if majority is not None:
        axes.axhline(majority, color=INK, linestyle="--", linewidth=1.0, label="majority class, accuracy")
    for row in validations:
        if row["selected"]:
            axes.axvline(row["step"], color=SOFT, linewidth=6, alpha=0.5, zorder=0, label="merged model")
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("score on the validation set", color=INK)
    axes.legend(frameon=False)
    return _data_url(axes)


@_or_none
def length_histogram(series: Sequence[tuple[str, np.ndarray]]) -> str:
    """Plot overlaid histograms of document lengths on a logarithmic axis.

    Args:
        series: (name, lengths in characters) of at most three sets of documents.
    """
    [axes] = panels(1, 2.9)
    longest = max((int(sizes.max()) for _, sizes in series if len(sizes)), default=1)
    edges = np.logspace(1, max(2.0, np.log10(longest + 1)), 41)
    for (name, sizes), color in zip(series, (SOFT, BLUE, RED), strict=False):
        axes.hist(np.maximum(sizes, 10), bins=edges, color=color, alpha=0.85, label=f"{name}: {len(sizes):,}")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("characters of a document", color=INK)
    axes.set_ylabel("documents", color=INK)
    axes.legend(frameon=False)
    return _data_url(axes)


def _data_url(axes: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(png(axes)).decode()


def _smooth(points: Sequence[tuple[int, float]], weight: float = 0.8) -> list[tuple[int, float]]:
    """Exponential moving average with the bias correction of Adam."""
    mean, smoothed = 0.0, []
    for count, (step, value) in enumerate(points, 1):
        mean = weight * mean + (1 - weight) * value
        smoothed.append((step, mean / (1 - weight**count)))
    return smoothed


def _thin(points: Sequence[tuple[int, float]], limit: int = 1500) -> list[tuple[int, float]]:
    """At most about `limit` points, each the mean of equally many neighbours; a plot has no more pixels."""
    size = -(-len(points) // limit) or 1
    cuts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(cut[-1][0], sum(value for _, value in cut) / len(cut)) for cut in cuts]
