"""Markdown of the run page's artifacts: overview of the steps, counts of a step, training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt2train.monitoring.time_left import TimeLeft
from gpt2train.store.manifest import Manifest
from gpt2train.store.progress import format_duration
from tasks.report.pictures import loss_curve

COLUMNS = {
    "step": "step",
    "loss": "loss",
    "valid_loss": "validation",
    "valid_bits_per_byte": "bits/byte",
    "grad_norm": "gradient norm",
    "lr": "learning rate",
    "tokens_per_second": "tokens/s",
    "mfu": "MFU",
    "memory_gib": "GiB",
    "loss_scale": "loss scale",
    "skipped": "skipped",
}
MAX_METRIC_ROWS = 10
MAX_FILES = 20  # listed per step
ESTIMATE_ROWS = 5_000  # last rows from which the time left is estimated, in 3 ms; a run may have 100,000


@dataclass
class StepRow:
    """Row of a step in the overview."""

    name: str
    state: str = "running"  # or done, cached, failed, stopped
    manifest: Manifest | None = None  # None until the step succeeds
    seconds: float | None = None  # duration; None while the step runs, and for a cached one


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows as a Markdown table; columns of numbers are right-aligned."""
    if not rows:
        return ""
    names = list(rows[0])
    right = {name for name in names if all(_is_number(row.get(name, "")) for row in rows)}
    lines = ["| " + " | ".join(names) + " |", "|" + "".join("---:|" if name in right else "---|" for name in names)]
    lines += ["| " + " | ".join(_cell(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def _is_number(value: Any) -> bool:
    text = str(value).strip("% ").replace(",", "")
    try:
        float(text or 0)
    except ValueError:
        return ":" in text and text.replace(":", "").isdecimal()
    return True


def steps_table(rows: Sequence[StepRow]) -> str:
    """Format the overview as a table with one row per step: state, rows in and kept, share, time."""
    return as_table([_step_row(row) for row in rows]) + "\n"


def _step_row(row: StepRow) -> dict[str, str]:
    state = f"**{row.state}**" if row.state in ("running", "failed", "stopped") else row.state
    cells = {"step": row.name, "state": state, "in": "", "kept": "", "share": "", "time": ""}
    if row.manifest and (seen := row.manifest.outcome.seen):
        kept = row.manifest.outcome.kept
        cells |= {"in": f"{seen:,}", "kept": f"{kept:,}", "share": f"{kept / seen:.1%}"}
    if row.seconds is not None:
        cells["time"] = f"{row.seconds:.1f} s" if row.seconds < 60 else format_duration(row.seconds)
    return cells


def steps_summary(rows: Sequence[StepRow]) -> str:
    """Summarize the states of the steps in one line."""
    states = ("done", "cached", "failed", "stopped")
    counts = [f"{count} {state}" for state in states if (count := sum(row.state == state for row in rows))]
    running = [row.name for row in rows if row.state == "running"]
    return "steps: " + ", ".join([*counts, *(f"{name} is running" for name in running)])


def counts(manifest: Manifest) -> str:
    """Format the rows in and out of a step, its dropped rows by reason, and its files."""
    outcome = manifest.outcome
    found: dict[str, Any] = {"in": outcome.seen, "kept": outcome.kept} if outcome.seen else {}
    found |= {f"dropped: {reason}": count for reason, count in outcome.reasons.items()} | outcome.facts
    rows = [
        {"what": name.replace("_", " "), "count": f"{count:,}" if isinstance(count, int) else count}
        for name, count in found.items()
    ]
    files = [{"file": f"`{manifest.folder}/{r.name}`", "bytes": f"{r.bytes:,}"} for r in outcome.outputs[:MAX_FILES]]
    more = len(outcome.outputs) - len(files)
    sections = [as_table(rows), as_table(files), f"and {more:,} more files" if more > 0 else ""]
    return "\n\n".join([*filter(None, sections), f"fingerprint `{manifest.fingerprint}`"]) + "\n"


def training(records: Sequence[dict[str, Any]], steps: int, sample: Mapping[str, Any] | None = None) -> str:
    """Format the loss curve, the progress, the last metrics and the last sample text of a training."""
    last = records[-MAX_METRIC_ROWS:]
    columns = {key: name for key, name in COLUMNS.items() if any(record.get(key) is not None for record in last)}
    rows = [{name: short(record.get(key)) for key, name in columns.items()} for record in last]
    picture = loss_curve(records, steps)
    facts = [f"**{training_summary(records, steps)}**"]
    valid = [(r["valid_loss"], r["step"]) for r in records if r.get("valid_loss") is not None]
    if valid:
        facts.append(f"validation loss {valid[-1][0]:.4f} at step {valid[-1][1]:,}")
        if min(valid) != valid[-1]:
            facts.append(f"the best was {min(valid)[0]:.4f} at step {min(valid)[1]:,}")
    if bits := [r["valid_bits_per_byte"] for r in records if r.get("valid_bits_per_byte") is not None]:
        facts.append(f"{bits[-1]:.4f} bits per byte")
    if records[-1].get("tokens"):
        facts.append(f"{records[-1]['tokens']:,} tokens seen")
    written = "" if sample is None else f"\nSample text at step {sample['step']:,}:\n\n{_as_code(sample)}\n"
    curve = f"![loss curve]({picture})\n\n" if picture else ""
    return f"{curve}{'; '.join(facts)}\n\n{as_table(rows)}\n{written}"


def _as_code(sample: Mapping[str, Any]) -> str:
    """Format a sample text as a Markdown code block, in which nothing is markup."""
    return "\n".join(f"    {line}" for line in f"{sample['prompt']}{sample['text']}".splitlines())


def training_summary(records: Sequence[dict[str, Any]], steps: int) -> str:
    """Summarize steps done, speed and time left in one line."""
    last = records[-1]
    facts = [f"step {last['step']:,} of {steps:,}"]
    if last.get("tokens_per_second"):
        facts.append(f"{last['tokens_per_second']:,.0f} tokens/s")
    if left := TimeLeft(records[-ESTIMATE_ROWS:]).seconds(steps):
        facts.append(f"{format_duration(left)} left")
    return ", ".join(facts)


def short(value: Any) -> str:
    """Format a number as a table cell; empty for None."""
    if isinstance(value, float) and value >= 1000:
        return f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
