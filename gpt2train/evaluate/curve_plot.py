"""Plot of the scores of a run's checkpoints over training tokens."""

import io
from collections.abc import Sequence
from typing import Any

INK, ACCURACY, LOSS, WIKITEXT = "#1f2430", "#2f7d5b", "#d1495b", "#3b6fb6"


def curve_picture(points: Sequence[dict[str, Any]]) -> bytes:
    """Return a PNG with one panel per measure that occurs in a point.

    Args:
        points: points of `gpt2train.evaluate.curve.score_run`.
    """
    # Imported here, as it takes 0.5 s. Not pyplot, which needs global state or a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [
        ("validation loss, nats per token", LOSS, lambda point: point["valid_loss"]),
        ("LAMBADA accuracy, %", ACCURACY, lambda point: 100 * _lambada(point)["accuracy"]),
        ("LAMBADA perplexity", ACCURACY, lambda point: _lambada(point)["perplexity"]),
        ("WikiText adjusted perplexity", WIKITEXT, lambda point: point["wikitext"]["adjusted_perplexity"]),
    ]
    shown = [(label, color, series) for label, color, value in panels if (series := _series(points, value))]
    figure = Figure(figsize=(7.2, 2.4 * max(1, len(shown))), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (label, color, series) in zip(_axes(figure, len(shown)), shown, strict=True):
        axes.plot(*zip(*series, strict=True), color=color, marker="o", markersize=4, linewidth=1.6)
        axes.set_ylabel(label, color=INK)
        if "perplexity" in label:
            axes.set_yscale("log")
        axes.grid(alpha=0.25, which="both")
        axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.axes[-1].set_xlabel("tokens of training", color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _lambada(point: dict[str, Any]) -> dict[str, Any]:
    definition: dict[str, Any] = point["lambada"]["definitions"]["lambada_openai"]
    return definition


def _series(points: Sequence[dict[str, Any]], value: Any) -> list[tuple[int, float]]:
    found = []
    for point in points:
        try:
            number = value(point)
        except KeyError:  # not measured
            continue
        if number is not None:
            found.append((point["tokens"], number))
    return found


def _axes(figure: Any, count: int) -> list[Any]:
    return list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]) if count else []
