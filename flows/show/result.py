"""What a run page shows at the end: where the rows went, the scores, and where everything lies."""

from collections.abc import Sequence
from typing import Any

from flows.show.artifacts import as_table
from flows.show.page import Page
from tasks.report import REPORT, gather, summary
from tasks.steps import Manifest
from tasks.storage import Folder


def show_result(page: Page, root: Folder, manifests: Sequence[Manifest]) -> None:
    """Leave the result of a flow on its page.

    Args:
        root: the output URL.
        manifests: of all its steps, the report among them where it wrote one.
    """
    steps = list(manifests)
    page.put("result", lambda: result(root, steps), "what came of it, and where it lies", of_step=False)


def result(root: Folder, manifests: Sequence[Manifest]) -> str:
    """The funnel, the training, the scores, then paths and the commands that go on from there; Markdown."""
    parts = [
        summary(gather(root, manifests)).rstrip() + "\n",
        "## Where it lies\n",
        as_table(places(root, manifests)) + "\n",
    ]
    if todo := commands(root, manifests):
        parts += ["## What to do with it\n", as_table(todo) + "\n"]
    return "\n".join(parts)


def places(root: Folder, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Files and folders that a person asks for, those of the last steps first."""
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


def commands(root: Folder, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """What a person can do next with what is there."""
    by_step = {manifest.step: (root / manifest.folder).path() for manifest in manifests}
    found = []
    if model := by_step.get("merge"):
        found += [("serve it", f"gpt2train serve --model {model}")]
        found += [("let it write", f"gpt2train generate --model {model} --prompt 'The'")]
    elif run := by_step.get("train"):
        found += [("score it", f"python -m flows.evaluate --run {run}")]
    elif "tokenize" in by_step:
        found += [("train on it", f"python -m flows.pretrain --data {root.path() if root.is_local else root.url}")]
    for manifest in manifests:
        if manifest.step == "download" and (pages := manifest.outcome.facts.get("retryable")):
            again = "the same, with --retry-failed, or --param retry_failed=true"
            found += [(f"ask again for {pages:,} pages that failed for a reason that may pass", again)]
    return [{"to": what, "command": f"`{command}`"} for what, command in found]
