"""Scores of all kept checkpoints of a run, with a cache of results.

`RUN/scores/step-…/KIND-HASH.json` is the result of one checkpoint on one file; the hash covers everything that the
numbers depend on. An existing result is reused.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpt2train.checkpoint.manifest import read_manifest, sha256
from gpt2train.convert.detect import find_source, find_tokenizer
from gpt2train.convert.settings import Device
from gpt2train.data.tokenizer import load_model_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.evaluate.eval_model import named, read_checkpoint
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.files import DATA_HASH_KEY, SCORES, check_run, data_fields, to_json
from gpt2train.evaluate.registry import EVALUATIONS, plugin_versions
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, Report
from gpt2train.evaluate.tasks.suite import Work, score_work
from gpt2train.parallel.mesh import broadcast_from_rank0
from gpt2train.settings import Settings
from gpt2train.store.files import write_atomic
from gpt2train.store.run_folder import FOLDER, MANIFEST, list_checkpoints

VERSION = 2  # version of the scoring rules; a new version invalidates all cached results

Scored = dict[str, Any]


@dataclass(frozen=True)
class CurveMeasure:
    """Evaluation that is applied to every checkpoint."""

    kind: str  # name of the evaluation
    about: Mapping[str, Any]  # name and hash of the data file, and the options that change the numbers
    score: Callable[[Scorer], Scored]  # function from a model to its result
    versions: Mapping[str, str] = field(default_factory=dict)  # versions of the plug-ins that the numbers depend on
    identity: str = ""  # hash of a description that the numbers depend on


def curve_measure(name: str, file: Path, raw: bytes, options: Settings | None = None) -> CurveMeasure:
    """Create the measure of an evaluation on a data file with some content.

    Raises:
        UserError: there is no such evaluation, or the content is malformed.
    """
    evaluation = EVALUATIONS[name]
    settings = options or evaluation.settings()
    data = evaluation.read(raw, str(file))
    facts = {**data_fields(file.name, raw), **settings.model_dump(mode="json")}
    score = functools.partial(evaluation.evaluate, data=data, settings=settings)
    return CurveMeasure(name, facts, score, plugin_versions([name]), evaluation.identity)


def task_measure(work: Work, limit: int | None = None) -> CurveMeasure:
    """Create the measure of a task or suite, of so many items of each task."""
    return CurveMeasure(
        work.file, work.facts, lambda scorer: score_work(scorer, work, limit)[0], identity=work.identity(limit)
    )


def score_run(
    run: Path,
    measures: Sequence[CurveMeasure],
    tokenizer: Path | None = None,
    device: Device = "cpu",
    group: dist.ProcessGroup | None = None,
    report: Report | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Scored:
    """Score each kept checkpoint of a run, oldest first.

    Args:
        run: run folder.
        measures: measures to apply; without any, the points have validation losses only.
        tokenizer: tokenizer folder of the training; by default the one next to its data.
        device: device of the models; auto uses a GPU if there is one.
        group: processes that share the work; rank 0 reads and writes the results.
        report: called after every checkpoint with the numbers of finished and of all checkpoints.
        batch_tokens: tokens per batch, including padding.

    Returns:
        JSON-serialisable result: `run`, `points` (`step`, `samples`, `tokens`, `valid_loss`, and one result per
        measure), and the number of `reused` results.

    Raises:
        UserError: the folder is not a run, has no checkpoint, or the tokenizer is not found.
        RunError: a checkpoint is damaged.
    """
    check_run(run)
    # Rank 0's list for all ranks: a run in progress adds and removes checkpoints.
    names = _from_rank0(lambda: [path.name for path in list_checkpoints(run)], group)
    if not names:
        raise UserError(f"no checkpoint in {run / FOLDER}; give the folder of a run that has saved one")
    points, reused = [], 0
    for checkpoint in (run / FOLDER / name for name in names):
        manifest = read_manifest(checkpoint)
        done, context = manifest.position.samples, int(manifest.config["model"]["context"])
        point: Scored = {"step": manifest.position.step, "samples": done, "tokens": done * context}
        point["valid_loss"] = manifest.valid_loss
        tokenizer_folder = find_tokenizer(find_source(checkpoint), tokenizer) if measures else run
        scorer = functools.cache(functools.partial(_scorer, checkpoint, device, tokenizer_folder, batch_tokens, group))
        for measure in measures:
            file = run / SCORES / checkpoint.name / f"{measure.kind}-{_key(checkpoint, measure, tokenizer_folder)}.json"
            result = _from_rank0(functools.partial(_read, file), group)
            reused += result is not None
            if result is None:
                subject = scorer()
                with named(checkpoint):
                    result = {**measure.about, **measure.score(subject)}
                if group is None or dist.get_rank(group) == 0:
                    write_atomic(file, to_json(result))  # also over a damaged one
            point[measure.kind] = result
        points.append(point)
        if report is not None:
            report(len(points), len(names))
    return {
        "run": run.name,
        DATA_HASH_KEY: {m.kind: m.about[DATA_HASH_KEY] for m in measures},
        "points": points,
        "reused": reused,
    }


def _scorer(
    checkpoint: Path, device: Device, tokenizer: Path, batch_tokens: int, group: dist.ProcessGroup | None
) -> Scorer:
    model = read_checkpoint(checkpoint, device)
    return Scorer(model, load_model_tokenizer(tokenizer, model.shape.vocab), batch_tokens, group=group)


def _key(checkpoint: Path, measure: CurveMeasure, tokenizer: Path) -> str:
    """Return the hash of everything that a result depends on; a checkpoint's manifest covers its files."""
    weights_hash, vocabulary_hash = sha256(checkpoint / MANIFEST), tokenizer_hash(tokenizer)
    parts = [VERSION, weights_hash, vocabulary_hash, measure.kind, dict(measure.about)]
    parts += [dict(measure.versions)] if measure.versions else []
    parts += [measure.identity] if measure.identity else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _read(file: Path) -> Scored | None:
    """Return a cached result; None if it does not exist or is unreadable."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and DATA_HASH_KEY in found else None


def _from_rank0(function: Callable[[], Any], group: dist.ProcessGroup | None) -> Any:
    """Return the function's result on rank 0, on all ranks."""
    return function() if group is None else broadcast_from_rank0(function, group)
