"""Pictures of a run, drawn without a display: PNG bytes that a page can carry inline."""

import base64
import io
from collections.abc import Sequence
from typing import Any

INK, TRAIN, VALID = "#1f2430", "#3b6fb6", "#d1495b"


def loss_curve(records: Sequence[dict[str, Any]], steps: int | None = None) -> bytes:
    """Training and validation loss over the steps, as PNG.

    Args:
        records: lines of `metrics.jsonl`: `step`, `loss`, and `valid_loss` where it was measured.
        steps: last step of the run; fixes the axis while the run is going on.
    """
    # Imported here: matplotlib takes half a second, and most commands draw nothing. The figure is made without
    # pyplot, whose global state is not safe in the thread that follows a running job.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    trained = [(r["step"], r["loss"]) for r in records if r.get("loss") is not None]
    valid = [(r["step"], r["valid_loss"]) for r in records if r.get("valid_loss") is not None]
    if trained:
        axes.plot(*zip(*trained, strict=True), color=TRAIN, linewidth=1.0, alpha=0.35)
        axes.plot(*zip(*_smooth(trained), strict=True), color=TRAIN, linewidth=1.8, label="training (smoothed)")
    if valid:
        axes.plot(*zip(*valid, strict=True), color=VALID, marker="o", markersize=4, linewidth=1.4, label="validation")
    if steps:
        axes.set_xlim(0, steps)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss, nats per token", color=INK)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if trained or valid:
        axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _smooth(points: Sequence[tuple[int, float]], weight: float = 0.8) -> list[tuple[int, float]]:
    """Exponential moving average, corrected for its start as Adam corrects its means."""
    mean, smoothed = 0.0, []
    for count, (step, value) in enumerate(points, 1):
        mean = weight * mean + (1 - weight) * value
        smoothed.append((step, mean / (1 - weight**count)))
    return smoothed


def data_uri(png: bytes) -> str:
    """A PNG as a `data:` address, for `<img src>`."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
