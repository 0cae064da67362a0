"""Report of a run: one self-contained HTML file without scripts, and the same facts as Markdown.

Its sources are the manifests, the rejected rows that they name, `metrics.jsonl` and `eval/*.json`.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from gpt2train.convert.card_scores import cloze_title, definition_title
from gpt2train.evaluate.registry import BUILT_IN, EVALUATIONS
from gpt2train.evaluate.tasks.table import is_of_tasks, result_rows
from gpt2train.monitoring.metrics import kwh, read_metrics
from gpt2train.monitoring.run_record import read_record
from gpt2train.monitoring.samples import read_samples
from gpt2train.store.files import format_bytes
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome, digest
from tasks.cloze.step import no_passages_message
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.core.timings import read_timings
from tasks.evaluate.step import OF_THE_RUN
from tasks.report.findings import contamination, duplicates, findings
from tasks.report.pictures import loss_curve
from tasks.report.settings import ReportSettings
from tasks.report.task_findings import task_findings

REPORT = "report.html"
MAX_SAMPLES = 5  # sample texts on the page, evenly over the validations


def report(
    root: Folder, manifests: Sequence[Manifest], settings: ReportSettings, folder: str = "report", *, runner: Runner
) -> Manifest:
    """Write `report/report.html` about finished steps, in the order of the flow."""
    made = {manifest.step: manifest for manifest in manifests}
    inputs: dict[str, Manifest | str] = {**made}
    if overlaps := contamination(root, made.get("tokenize")):
        inputs["contamination"] = digest(overlaps)
    packages = ("jinja2", "matplotlib")
    step = Step(root, "report", version=11, parameters=settings, inputs=inputs, folder=folder, packages=packages)
    if done := runner.finished(step):
        return done
    facts = {**gather(root, manifests), "data": findings(root, made, settings.samples, runner.pool)}
    step.folder.write_bytes(REPORT, _render("report.html", facts).encode())
    return step.commit(Outcome(outputs=(step.folder.record(REPORT),)))


def gather(root: Folder, manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Facts of the page and of the summary as plain values; `findings` has the rest of the page."""
    by_step = {manifest.step: manifest for manifest in manifests}
    timings = read_timings(root)
    training = by_step.get("train")
    metrics = read_metrics((root / training.folder).path()) if training else []
    unit = "sample" if training and training.parameters.get("model", {}).get("labels") else "token"
    evaluation = by_step.get("evaluate")
    results = _evaluation(root, evaluation) if evaluation else {}
    return {
        "funnel": funnel(manifests, timings),
        "duplicates": duplicates(root, by_step.get("dedup")),
        "contamination": contamination(root, by_step.get("tokenize")),
        "training": _training(root, training, metrics, timings) if training else None,
        "unit": unit,
        "curve": loss_curve(metrics, unit=unit) if metrics else None,
        "samples": _spread(read_samples((root / training.folder).path())) if training else [],
        "task": task_findings(root, by_step, metrics),
        "evaluation": results,
        "cloze": cloze_title(results["lambada"], "accuracy") if "lambada" in results else None,
        "definition_title": definition_title,
        "other_scores": _other_scores(results),
        "task_rows": [row for result in results.values() if is_of_tasks(result) for row in result_rows(result)],
        "unscored": _unscored(by_step.get("cloze"), evaluation) if evaluation else [],
        "tokens": by_step["tokenize"].outcome.facts if "tokenize" in by_step else {},
        "steps": [_provenance(manifest, timings) for manifest in manifests],
        "machine": f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        "root": root.url,
    }


def funnel(manifests: Sequence[Manifest], timings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per step that counts rows: input, kept, share, reasons (most frequent first), seconds."""
    rows = []
    largest = max((manifest.outcome.seen for manifest in manifests), default=0)
    for manifest in manifests:
        outcome = manifest.outcome
        if not outcome.seen:
            continue
        reasons = sorted(outcome.reasons.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            {
                "step": manifest.step,
                "seen": outcome.seen,
                "kept": outcome.kept,
                "share": outcome.kept / outcome.seen,
                "kept_of_most": outcome.kept / largest,
                "dropped_of_most": (outcome.seen - outcome.kept) / largest,
                "reasons": reasons,
                "facts": outcome.facts,
                "seconds": timings.get(manifest.step, {}).get("seconds"),
            }
        )
    return rows


def _training(
    root: Folder, manifest: Manifest, metrics: list[dict[str, Any]], timings: Mapping[str, Any]
) -> dict[str, Any]:
    record = read_record((root / manifest.folder).path())
    speeds = sorted(r["tokens_per_second"] for r in metrics if r.get("tokens_per_second"))
    valid = [r["valid_loss"] for r in metrics if r.get("valid_loss") is not None]
    selected = manifest.outcome.facts.get("selected_step")
    of_model = [r["valid_loss"] for r in metrics if r["step"] == selected and "valid_loss" in r]
    bits = [r["valid_bits_per_byte"] for r in metrics if r.get("valid_bits_per_byte") is not None]
    return {
        "folder": manifest.folder,
        "settings": manifest.parameters,
        "facts": manifest.outcome.facts,
        "first_loss": metrics[0]["loss"] if metrics else None,
        "last_loss": metrics[-1]["loss"] if metrics else None,
        "valid_loss": valid[-1] if valid else None,
        "model_valid_loss": next(iter(of_model or valid[-1:]), None),
        "best_valid_loss": min(valid) if valid else None,
        "bits_per_byte": bits[-1] if bits else None,
        "best_bits_per_byte": min(bits) if bits else None,
        "tokens_per_second": speeds[len(speeds) // 2] if speeds else None,
        "seconds": timings.get("train", {}).get("seconds"),
        "gpu_kwh": kwh(metrics, "gpu_joules", record.repeated("joules") if record else 0.0),
        "cpu_kwh": kwh(metrics, "cpu_joules", record.repeated("cpu_joules") if record else 0.0),
    }


def _spread(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `MAX_SAMPLES` samples, evenly over the run, the first and the last among them."""
    if len(samples) <= MAX_SAMPLES:
        return samples
    return [samples[number * (len(samples) - 1) // (MAX_SAMPLES - 1)] for number in range(MAX_SAMPLES)]


def _evaluation(root: Folder, manifest: Manifest) -> dict[str, Any]:
    """JSON results of the evaluation, by file name without extension."""
    folder = root / manifest.folder
    names = [record.name for record in manifest.outputs if record.name.endswith(".json")]
    return {Path(name).stem: json.loads(folder.read_bytes(name)) for name in names}


def _other_scores(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row per metric of the evaluations of plug-ins."""
    others = [name for name in results if name not in (*BUILT_IN, *OF_THE_RUN)]
    names = [name for name in others if not is_of_tasks(results[name])]
    return [
        {
            "name": f"{name}: {metric.name}",
            "value": metric.text_with_error(results[name]),
            "definition": metric.definition,
        }
        for name in names
        for metric in EVALUATIONS[name].metrics
    ]


def _unscored(cloze: Manifest | None, evaluation: Manifest) -> list[str]:
    """One line per standard score for which the evaluation has no data."""
    notes = []
    if "lambada.json" not in [record.name for record in evaluation.outputs]:
        notes.append(f"No cloze score: {no_passages_message(cloze)}." if cloze else "No cloze score: no set was given.")
    if not evaluation.outcome.facts.get("held_out_documents", 1):
        notes.append("No perplexity of held-out documents: the test split is empty.")
    return notes


def _provenance(manifest: Manifest, timings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "step": manifest.step,
        "folder": manifest.folder,
        "fingerprint": manifest.fingerprint,
        "content": manifest.content,
        "versions": manifest.versions,
        "parameters": json.dumps(manifest.parameters, indent=1, sort_keys=True, ensure_ascii=False),
        "seconds": timings.get(manifest.step, {}).get("seconds"),
        "files": len(manifest.outputs),
        "bytes": sum(record.bytes for record in manifest.outputs),
    }


def _render(template: str, facts: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tasks.report", "templates"),
        autoescape=True,  # rejected rows contain untrusted text
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["count"] = lambda value: "–" if value is None else f"{value:,}"
    environment.filters["number"] = lambda value, digits=3: "–" if value is None else f"{value:,.{digits}f}"
    environment.filters["size"] = format_bytes
    environment.filters["words"] = lambda name: str(name).replace("_", " ")
    return environment.get_template(template).render(**facts)


def summary(facts: Mapping[str, Any]) -> str:
    """Render the report as Markdown, for an artifact on the run page."""
    return _render("summary.md", facts)
