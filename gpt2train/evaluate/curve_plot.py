"""Plot of the scores of a run's checkpoints over training tokens."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt2train.evaluate.curve_table import curve_metrics
from gpt2train.evaluate.metrics import Metric

INK, LOSS, OTHER = "#1f2430", "#d1495b", "#7a5195"
COLORS = {"lambada": "#2f7d5b", "wikitext": "#3b6fb6"}

Point = Mapping[str, Any]


def curve_picture(curve: Mapping[str, Any]) -> bytes:
    """Return a PNG with one panel per metric that occurs in a point.

    Args:
        curve: result of `gpt2train.evaluate.curve.score_run`.
    """
    # Imported here, as it takes 0.5 s. Not pyplot, which needs global state or a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[tuple[str, str, bool, Callable[[Point], float | None]]] = [
        ("validation loss, nats per token", LOSS, False, lambda point: point["valid_loss"])
    ]
    panels += [_panel(name, metric) for name, metric in curve_metrics(curve)]
    points = curve["points"]
    shown = [(label, color, log, series) for label, color, log, value in panels if (series := _series(points, value))]
    figure = Figure(figsize=(7.2, 2.4 * max(1, len(shown))), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (label, color, log, series) in zip(_axes(figure, len(shown)), shown, strict=True):
        axes.plot(*zip(*series, strict=True), color=color, marker="o", markersize=4, linewidth=1.6)
        axes.set_ylabel(label, color=INK)
        if log:
            axes.set_yscale("log")
        axes.grid(alpha=0.25, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.axes[-1].set_xlabel("tokens of training", color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


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


def _axes(figure: Any, count: int) -> list[Any]:
    return list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]) if count else []
