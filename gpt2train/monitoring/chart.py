"""Axes of the charts that matplotlib draws, in one style and without a display."""

import io
import logging
from typing import Any

INK, BLUE, RED, SOFT = "#1f2430", "#3b6fb6", "#d1495b", "#c3c9d4"


def panels(count: int, height: float) -> list[Any]:
    """Empty axes above each other on a figure of 7.2 inches, each `height` inches high, with one axis of x values."""
    # Imported here: matplotlib takes half a second, and most commands draw nothing. The figure is made without
    # pyplot, whose global state is not safe in the thread that monitors a running job.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # else three lines about a home that cannot be written
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height * count), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    found = list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])
    for axes in found:
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return found


def png(axes: Any) -> bytes:
    """Return the figure of some axes as a PNG image, the same bytes whenever it is drawn."""
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
