"""Result artifact of a flow run: row counts, scores, paths of the outputs and the next commands."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import flows
from flows.ui.artifact_publisher import ArtifactPublisher
from flows.ui.artifacts import as_table
from gpt2train.data.document_split import PARTS
from gpt2train.store.counts import count_of
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.ready_tokens.step import NAME as READY_TOKENS
from tasks.report.step import REPORT, gather, summary


def show_result(publisher: ArtifactPublisher, root: Folder, manifests: Sequence[Manifest]) -> None:
    """Publish the result of a flow on its run page; the manifests are those of all steps, with the report's if any."""
    steps = list(manifests)
    publisher.publish("result", lambda: result(root, steps), "results and their paths", of_step=False)


def result(root: Folder, manifests: Sequence[Manifest]) -> str:
    """Format the result as Markdown: row counts by step, training, scores, paths, next commands."""
    parts = [
        summary(gather(root, manifests)).rstrip() + "\n",
        *(f"## Split\n\n{split_table(manifest)}\n" for manifest in manifests if manifest.step == READY_TOKENS),
        "## Paths\n",
        as_table(output_paths(root, manifests)) + "\n",
    ]
    if todo := next_commands(root, manifests):
        parts += ["## Next steps\n", as_table(todo) + "\n"]
    return "\n".join(parts)


def split_table(tokens: Manifest) -> str:
    """Format the documents and tokens of each part of token files that were made elsewhere."""
    facts = tokens.outcome.facts
    return as_table(
        [{"part": part} | {unit: f"{facts[f'{part}_{unit}']:,}" for unit in ("documents", "tokens")} for part in PARTS]
    )


def output_paths(root: Folder, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """List the output files and folders of a run, those of the last steps first."""
    by_step = {manifest.step: manifest for manifest in manifests}
    scores = by_step["evaluate"].outputs if "evaluate" in by_step else ()
    paths = [
        ("report", "report", REPORT),
        *((f"scores: {record.name}", "evaluate", record.name) for record in scores),
        ("model (Hugging Face)", "merge", ""),
        ("scores and predictions", "task_scores", ""),
        ("samples", "samples", ""),
        ("run folder", "train", ""),
        ("metrics", "train", "metrics.jsonl"),
        ("logs of the ranks", "train", "logs"),
        ("tokens", "tokenize", ""),
    ]
    return [
        {"what": what, "where": f"`{(root / by_step[step].folder).location(name)}`"}
        for what, step, name in paths
        if step in by_step
    ]


def next_commands(root: Folder, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """List the commands that use the outputs of a run."""
    by_step = {manifest.step: (root / manifest.folder).path() for manifest in manifests}
    found = []
    training = next((manifest.parameters for manifest in manifests if manifest.step == "train"), {})
    shape = training.get("model", {})
    encodes = training.get("objective", {}).get("name") == "span_corruption"  # of no text it has a probability
    if "merge" in by_step and shape.get("labels"):  # a classifier, which is not served
        found += [("read about it", f"less {quote(by_step['merge'] + '/README.md')}")]
    elif model := by_step.get("merge"):
        found += [] if encodes else [("serve it", f"gpt2train serve --model {quote(model)}")]
        prompt = "The <extra_id_0>" if encodes else "The"
        found += [("generate text", f"gpt2train generate --model {quote(model)} --prompt {quote(prompt)}")]
    elif (run := by_step.get("train")) and (encodes or READY_TOKENS in by_step):  # nothing that it could be scored on
        lacks = READY_TOKENS in by_step and not (Path(run) / "tokenizer").is_dir()
        command = f"gpt2train merge {quote(run)} --output {quote(run + '/model')}"
        found += [("merge it", f"{command} --tokenizer DIR" if lacks else command)]
    elif run:
        found += [("score it", f"{flows.program}evaluate --run {quote(run)}")]
    elif "tokenize" in by_step:
        found += [("train on it", f"{flows.program}pretrain --data {quote(root.location())}")]
    for manifest in manifests:
        if manifest.step == "download" and (pages := manifest.outcome.facts.get("retryable")):
            again = "the same, with --retry-failed, or --param retry_failed=true"
            found += [(f"retry {count_of(pages, 'page')} that failed for a transient reason", again)]
    return [{"to": what, "command": f"`{command}`"} for what, command in found]
