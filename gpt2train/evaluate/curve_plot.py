"""Plot of the scores of a run's checkpoints over training tokens."""

from collections.abc import Mapping
from typing import Any

from gpt2train.evaluate.curve_table import curve_metrics
from gpt2train.monitoring.chart import BLUE, INK, RED, panels, png

OTHER = "#7a5195"
COLORS = {"lambada": "#2f7d5b", "wikitext": BLUE}


def curve_picture(curve: Mapping[str, Any]) -> bytes:
    """Return a PNG with one panel per metric that occurs in a point of a curve (`score_run`)."""
    points = curve["points"]
    # Label, colour, scale of the axis and value at each point; shares are in per cent.
    lines = [("validation loss, nats per token", RED, "linear", [point["valid_loss"] for point in points])]
    for name, metric in curve_metrics(curve):
        unit, suffix = (100, ", %") if metric.scale == "share" else (1, "")
        found = [metric.value(point[name]) for point in points]
        values = [None if value is None else unit * value for value in found]
        lines.append((metric.axis or f"{name} {metric.name}{suffix}", COLORS.get(name, OTHER), metric.scale, values))
    shown = [line for line in lines if any(value is not None for value in line[-1])]
    places = panels(max(1, len(shown)), 2.4)
    for axes, (label, color, scale, values) in zip(places, shown, strict=False):
        series = [(point["tokens"], value) for point, value in zip(points, values, strict=True) if value is not None]
        axes.plot(*zip(*series, strict=True), color=color, marker="o", markersize=4, linewidth=1.6)
        axes.set_ylabel(label, color=INK)
        if scale == "log":
            axes.set_yscale("log")
            axes.grid(alpha=0.25, which="minor")
    places[-1].set_xlabel("tokens of training", color=INK)
    return png(places[-1])
