"""The task_scores step: scores of the tuned model on the validation and test samples, and its predictions.

Writes to `<run folder>/task/`: `valid.json`, `test.json` with the scores, and `valid.predictions.jsonl`,
`test.predictions.jsonl` with one line for each sample: the file and row that it comes from, its label or answer, and
what the model predicts. The scores are those of the merged folder, computed anew in one process.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gpt2train.convert.settings import Device
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.step import Step
from tasks.finetune.settings import TaskSettings

FOLDER = "task"  # in the run folder
PARTS = ("valid", "test")
BATCH = 16  # samples per forward
ANSWER_TOKENS = 128  # generated for an answer at most


def task_scores(
    root: Folder,
    model: Manifest,
    prepared: Manifest,
    task: TaskSettings,
    length: int,
    runner: Runner,
    *,
    device: Device = "auto",
    threads: int = 1,
) -> Manifest:
    """Score a tuned model on the samples of a task, of at most `length` tokens each.

    Device and threads of the processes are not part of the fingerprint.
    """
    step = Step(
        root,
        "task_scores",
        version=1,
        parameters={"kind": task.kind, "length": length},
        inputs={"merge": model, "samples": prepared},
        folder=str(PurePosixPath(model.folder).parent / FOLDER),
        packages=("tokenizers", "torch"),
    )
    if done := runner.finished(step):
        return done
    if not root.is_local:
        raise UserError(f"a model is read from a local folder, not from {root.url}; copy the run first")
    parts = [part for part in PARTS if f"{part}_samples" in prepared.outcome.facts]
    folders = (root / model.folder).path(), (root / prepared.folder).path()
    outcomes = runner.batches(step, "part", parts, scores_part, *folders, task.kind, length, device, threads)
    return step.commit(Outcome.total(outcomes))


def scores_part(
    folder: Folder, name: str, part: str, model: str, data: str, kind: str, length: int, device: Device, threads: int
) -> Outcome:
    """Write scores and predictions of one part."""
    import torch

    from gpt2train.convert.hf_config import read_end_tokens
    from gpt2train.convert.huggingface import read_model
    from gpt2train.data.tokenizer import load_tokenizer

    torch.set_num_threads(threads)
    opened, tokenizer = read_model(model, device, classifier=kind == "classification"), load_tokenizer(model)
    prefix = f"{data}/{part}"
    places = [json.loads(line) for line in Path(f"{prefix}.rows").read_bytes().split(b"\n") if line]
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        if kind == "classification":
            names = json.loads(Path(data, "labels.json").read_bytes())
            scores, rows = _classify(opened, prefix, length, names, places)
        elif kind == "answers":
            ends = read_end_tokens(Path(model), opened.shape.vocab)
            scores, rows = _answer(opened, tokenizer, prefix, length, places, ends if part == "test" else None)
        else:
            scores = _perplexity(opened, prefix, length)
    folder.write_bytes(f"{part}.json", json.dumps(scores, indent=1).encode() + b"\n")
    outputs = [folder.record(f"{part}.json")]
    if rows:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        folder.write_bytes(f"{part}.predictions.jsonl", lines.encode())
        outputs.append(folder.record(f"{part}.predictions.jsonl", rows=len(rows)))
    return Outcome(outputs=tuple(outputs), facts={f"{part}_scored": int(scores["samples"])})


def read_scores(root: Folder, scores: Manifest) -> dict[str, dict[str, float]]:
    """Read the scores of each part."""
    names = [record.name for record in scores.outputs if record.name.endswith(".json")]
    return {PurePosixPath(name).stem: json.loads((root / scores.folder).read_bytes(name)) for name in names}


def _batches(count: int, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Indices of samples of similar lengths, so that little is padding."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    return (order[start : start + BATCH] for start in range(0, count, BATCH))


def _classify(
    model: Any, prefix: str, length: int, names: Sequence[str], places: list[dict[str, Any]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Scores of the labelled samples, and the predictions of all."""
    import torch
    import torch.nn.functional as F

    from gpt2train.data.task_data import LabelledData
    from gpt2train.model.classification import class_counts
    from gpt2train.model.objectives import classification_metrics

    data = LabelledData(prefix, length, model.shape.vocab)
    device = next(model.parameters()).device
    count = data.per_epoch
    logits = torch.empty(count, model.shape.labels)
    targets = torch.empty(count, dtype=torch.int64)
    for indices in _batches(count, [len(data.sequences(number)[0]) for number in range(count)]):
        batch = data.batch(indices)
        longest = int(batch.extra["lengths"].max())
        found = model(batch.tokens[:, :longest].to(device), lengths=batch.extra["lengths"].to(device))
        logits[indices], targets[indices] = found.cpu(), batch.targets
    known = torch.tensor([place.pop("labelled", True) for place in places])
    scores: dict[str, float] = {"samples": count}
    if labelled := int(known.sum()):
        loss = float(F.cross_entropy(logits[known], targets[known]))
        counts = class_counts(logits[known], targets[known]).tolist()
        scores |= {"labelled": labelled, "loss": loss, **classification_metrics(counts, labelled)}
        scores["majority"] = float(torch.bincount(targets[known]).max()) / labelled
    rows = []
    for place, is_known, target, row in zip(places, known, targets.tolist(), logits.softmax(-1).tolist(), strict=True):
        label = {"label": names[target]} if is_known else {}
        chances = {name: round(chance, 6) for name, chance in zip(names, row, strict=True)}
        rows.append(place | label | {"predicted": names[int(np.argmax(row))], "probabilities": chances})
    return scores, rows


def _answer(
    model: Any, tokenizer: Any, prefix: str, length: int, places: list[dict[str, Any]], ends: tuple[int, ...] | None
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Loss of the answers; with `ends` also what the model answers to the last prompt of each sample.

    An answer ends at one of `ends`, or where a text ends.
    """
    from gpt2train.data.task_data import AnswerData
    from gpt2train.data.tokenizer import end_of_text_id
    from gpt2train.inference.generate import continue_tokens
    from gpt2train.inference.settings import SamplingSettings

    data = AnswerData(prefix, length, model.shape.vocab)
    device, count, total = next(model.parameters()).device, data.per_epoch, 0.0
    samples = [data.sequences(number) for number in range(count)]
    lengths = [sum(map(len, sample)) - 1 for sample in samples]
    for indices in _batches(count, lengths):
        batch, longest = data.batch(indices), max(lengths[index] for index in indices)
        total += float(model(batch.tokens[:, :longest].to(device), batch.targets[:, :longest].to(device)))
    scores = _loss_scores(count, data.counted(range(count)), total)
    if ends is None:
        return scores, []
    end = end_of_text_id(tokenizer)
    prompts = [np.concatenate(sample[:-1]).tolist() or [end] for sample in samples]
    chosen = SamplingSettings(temperature=0, max_new_tokens=ANSWER_TOKENS, stop_tokens=ends)
    given = [sequence.tokens for sequence in continue_tokens(model, prompts, chosen, end=end)]
    rows = []
    for place, sample, found in zip(places, samples, given, strict=True):
        answer, predicted = (
            tokenizer.decode([n for n in ids if n not in (end, *ends)]) for ids in (sample[-1].tolist(), found)
        )
        rows.append(place | {"answer": answer, "predicted": predicted})
    scores["exact_match"] = sum(row["answer"].strip() == row["predicted"].strip() for row in rows) / count
    return scores, rows


def _perplexity(model: Any, prefix: str, length: int) -> dict[str, float]:
    """Loss per token of texts, in contexts of `length` tokens that do not overlap."""
    import torch

    from gpt2train.data.samples import Samples

    samples = Samples(prefix, length, model.shape.vocab, None)
    device, total = next(model.parameters()).device, 0.0
    for start in range(0, samples.per_epoch, BATCH):
        tokens, _ = samples.read(range(start, min(start + BATCH, samples.per_epoch)))
        rows = torch.from_numpy(tokens).to(device)
        total += float(model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
    return _loss_scores(samples.per_epoch, samples.per_epoch * length, total)


def _loss_scores(samples: int, tokens: int, total: float) -> dict[str, float]:
    loss = total / tokens
    return {"samples": samples, "tokens": tokens, "loss": loss, "perplexity": math.exp(min(700.0, loss))}
