"""Result artifact of a flow run: row counts, scores, paths of the outputs and the next commands."""

from collections.abc import Sequence
from typing import Any

from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.artifacts import as_table
from tasks.core.step import Manifest
from tasks.core.storage import Folder
from tasks.report.step import REPORT, gather, summary


def show_result(publisher: ArtifactPublisher, root: Folder, manifests: Sequence[Manifest]) -> None:
    """Publish the result of a flow on its run page.

    Args:
        publisher: publisher of the run page.
        root: output folder.
        manifests: manifests of all steps, including the report if there is one.
    """
    steps = list(manifests)
    publisher.publish("result", lambda: result(root, steps), "results and their paths", of_step=False)


def result(root: Folder, manifests: Sequence[Manifest]) -> str:
    """Format the result as Markdown: row counts by step, training, scores, paths, next commands."""
    parts = [
        summary(gather(root, manifests)).rstrip() + "\n",
        "## Paths\n",
        as_table(output_paths(root, manifests)) + "\n",
    ]
    if todo := next_commands(root, manifests):
        parts += ["## Next steps\n", as_table(todo) + "\n"]
    return "\n".join(parts)


def output_paths(root: Folder, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """List the output files and folders of a run, those of the last steps first."""
    by_step = {manifest.step: root / manifest.folder for manifest in manifests}
    found: list[tuple[str, str]] = []
    if report := by_step.get("report"):
        found.append(("report", report.path(REPORT)))
    for manifest in manifests:
        if manifest.step == "evaluate":
            found += [
                (f"scores: {record.name}", (root / manifest.folder).path(record.name)) for record in manifest.outputs
            ]
    if model := by_step.get("merge"):
        found.append(("model (Hugging Face)", model.path()))
    if run := by_step.get("train"):
        found.append(("run folder", run.path()))
        found += [
            (what, run.path(name)) for what, name in (("metrics", "metrics.jsonl"), ("logs of the ranks", "logs"))
        ]
    if tokens := by_step.get("tokenize"):
        found.append(("tokens", tokens.path()))
    return [{"what": what, "where": f"`{where}`"} for what, where in found]


def next_commands(root: Folder, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """List the commands that use the outputs of a run."""
    by_step = {manifest.step: (root / manifest.folder).path() for manifest in manifests}
    found = []
    if model := by_step.get("merge"):
        found += [("serve it", f"gpt2train serve --model {model}")]
        found += [("generate text", f"gpt2train generate --model {model} --prompt 'The'")]
    elif run := by_step.get("train"):
        found += [("score it", f"python -m flows.evaluate --run {run}")]
    elif "tokenize" in by_step:
        found += [("train on it", f"python -m flows.pretrain --data {root.path() if root.is_local else root.url}")]
    for manifest in manifests:
        if manifest.step == "download" and (pages := manifest.outcome.facts.get("retryable")):
            again = "the same, with --retry-failed, or --param retry_failed=true"
            found += [(f"retry {pages:,} pages that failed for a transient reason", again)]
    return [{"to": what, "command": f"`{command}`"} for what, command in found]
