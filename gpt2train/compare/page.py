"""HTML page of a comparison: verdict, a table of the sets, and figures as inline SVG; it loads nothing."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gpt2train.store.counts import count_of

COLORS = ("#3b6fb6", "#d1495b")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 60, 16, 14, 40
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#1f2430}
table{border-collapse:collapse;width:100%}td,th{padding:.3em .6em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}.verdict{font-size:1.2em;padding:.8em 1em;background:#f2f4f8;
border-left:4px solid #3b6fb6}svg{width:100%;height:auto}text{font:12px system-ui,sans-serif;fill:#1f2430}"""


def comparison_page(result: Mapping[str, Any]) -> str:
    """Return the page of a result of `gpt2train.compare.comparison.Comparison.run`."""
    names = [escape(name) for name in result["names"]]
    rows = "".join(_row(name, row) for name, row in result["sets"].items())
    corpora = "".join(
        f"<tr><td>{escape(c['name'])}</td><td>{c['documents']:,}</td><td>{c['distinct']:,}</td>"
        f"<td>{c['near_duplicates']:,}</td><td>{c['dropped_as_held_out']:,}</td><td>{c['without_text']:,}</td>"
        f"<td>{c['over_limit']:,}</td></tr>"
        for c in result["corpora"]
    )
    needed = count_of(result["seeds_needed"], "seed") if result["seeds_needed"] else "more than 100 seeds"
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{names[0]} and {names[1]}</title>
<style>{STYLE}</style><h1>{names[0]} and {names[1]}</h1><p class="verdict">{escape(result["verdict"])}</p>
<p>{count_of(result["seeds"], "seed")}; each trains a model of the proxy {escape(result["proxy"]["name"])} on
{result["tokens_per_seed"]:,} tokens of either corpus, which are {count_of(result["epochs"], "epoch")} of its documents.
With the noise that was measured, a difference of
{result["difference"]:g} bits per byte needs {needed}, without the error of the held-out
sample, which more seeds do not reduce.</p>
<h2>Differences</h2><table><tr><th>set</th><th>items</th><th>{names[0]}</th><th>{names[1]}</th>
<th>{names[0]} − {names[1]}</th><th>better</th></tr>{rows}</table>
<p>Bits per byte, of documents or of the right answers of a task; lower is better. The intervals hold together with 98 %
confidence over all sets. They cover initial weights, order, the sample of training documents and that of held-out
documents. They do not cover larger models or more training.</p>{_intervals(result["sets"])}
<h2>Validation loss while training</h2>{_curves(result["curves"])}
<h2>Corpora</h2><table><tr><th>corpus</th><th>documents</th><th>distinct</th><th>copies and near-duplicates</th>
<th>dropped as held out</th><th>rows without text</th><th>above the size limit</th></tr>
{corpora}</table></html>
"""


def _row(name: str, row: Mapping[str, Any]) -> str:
    first, second = (sum(arm) / len(arm) for arm in row["bits_per_byte"])
    return (
        f"<tr><td>{escape(name)}</td><td>{row['items']:,}</td><td>{first:.4f}</td><td>{second:.4f}</td>"
        f"<td>{row['mean']:+.4f} ± {row['half_width']:.4f}</td><td>{escape(row['better'] or 'no difference')}</td></tr>"
    )


def _intervals(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """Interval of each set around 0, with a dot for each seed."""
    reach = max((abs(row["mean"]) + row["half_width"] for row in sets.values()), default=0) or 1.0
    reach = max(reach, *(abs(value) for row in sets.values() for value in row["values"]))
    height, middle, scale = 34 * len(sets) + 30, 440, 250 / reach
    parts = [f'<line x1="{middle}" y1="0" x2="{middle}" y2="{height - 24}" stroke="#999" stroke-dasharray="3"/>']
    for number, (name, row) in enumerate(sets.items()):
        y = 34 * number + 20
        low, high = (middle + scale * (row["mean"] + sign * row["half_width"]) for sign in (-1, 1))
        parts.append(f'<text x="0" y="{y + 4}">{escape(name[:26])}</text>')
        parts.append(f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="#1f2430" stroke-width="2"/>')
        parts += [
            f'<circle cx="{middle + scale * value:.1f}" cy="{y}" r="3" fill="{COLORS[0]}" fill-opacity=".6"/>'
            for value in row["values"]
        ]
    for at in (-reach, 0.0, reach):
        parts.append(f'<text x="{middle + scale * at:.1f}" y="{height - 6}" text-anchor="middle">{at:+.3f}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="differences by set">{"".join(parts)}</svg>'


def _curves(curves: Mapping[str, Sequence[Sequence[Sequence[float]]]]) -> str:
    """Validation loss over tokens, one line for each seed."""
    points = [point for arm in curves.values() for curve in arm for point in curve]
    if not points:
        return "<p>none</p>"
    right, low, high = max(p[0] for p in points), min(p[1] for p in points), max(p[1] for p in points)
    span = (high - low) or 1.0

    def place(point: Sequence[float]) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * point[0] / right
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - point[1]) / span
        return f"{x:.1f},{y:.1f}"

    parts = []
    for color, (number, (name, arm)) in zip(COLORS, enumerate(curves.items()), strict=True):
        for curve in arm:
            line = " ".join(map(place, curve))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-opacity=".7"/>')
        y = TOP + 14 + 18 * number
        parts.append(f'<text x="{WIDTH - 150}" y="{y}" style="fill:{color}">{escape(name[:20])}</text>')
    for loss in (low, (low + high) / 2, high):
        level = float(place((0, loss)).split(",")[1])
        parts.append(f'<text x="{LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        parts.append(f'<line x1="{LEFT}" y1="{level:.1f}" x2="{WIDTH - RIGHT}" y2="{level:.1f}" stroke="#ddd"/>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">tokens, up to {right:,}; loss in nats per token</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="validation loss">{"".join(parts)}</svg>'
