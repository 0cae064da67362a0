"""Plot of the scores of a run's checkpoints over training tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt2train.evaluate.curve_table import curve_metrics
from gpt2train.evaluate.metrics import Metric
from gpt2train.monitoring.chart import BLUE, INK, RED, panels, png

OTHER = "#7a5195"
COLORS = {"lambada": "#2f7d5b", "wikitext": BLUE}

Point = Mapping[str, Any]


def curve_picture(curve: Mapping[str, Any]) -> bytes:
    """Return a PNG with one panel per metric that occurs in a point.

    Args:
        curve: result of `gpt2train.evaluate.curve.score_run`.
    """
    candidates: list[tuple[str, str, bool, Callable[[Point], float | None]]] = [
        ("validation loss, nats per token", RED, False, lambda point: point["valid_loss"])
    ]
    candidates += [_panel(name, metric) for name, metric in curve_metrics(curve)]
    points = curve["points"]
    shown = [
        (label, color, log, series) for label, color, log, value in candidates if (series := _series(points, value))
    ]
    found = panels(max(1, len(shown)), 2.4)
    for axes, (label, color, log, series) in zip(found, shown, strict=False):
        axes.plot(*zip(*series, strict=True), color=color, marker="o", markersize=4, linewidth=1.6)
        axes.set_ylabel(label, color=INK)
        if log:
            axes.set_yscale("log")
            axes.grid(alpha=0.25, which="minor")
    found[-1].set_xlabel("tokens of training", color=INK)
    return png(found[-1])


def _panel(name: str, metric: Metric) -> tuple[str, str, bool, Callable[[Point], float | None]]:
    """Return label, colour, True for a logarithmic axis, and the value at a point."""
    unit = 100 if metric.scale == "share" else 1
    label = metric.axis or f"{name} {metric.name}{', %' if unit == 100 else ''}"

    def value(point: Point) -> float | None:
        number = metric.value(point[name])
        return None if number is None else unit * number

    return label, COLORS.get(name, OTHER), metric.scale == "log", value


def _series(points: Sequence[Point], value: Callable[[Point], float | None]) -> list[tuple[int, float]]:
    return [(point["tokens"], number) for point in points if (number := value(point)) is not None]
