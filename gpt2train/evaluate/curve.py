"""Scores over a training run: each kept checkpoint by itself, and no checkpoint twice.

`RUN/scores/step-…/KIND-HASH.json` holds what one checkpoint scored on one file, under the hash of all that the numbers
depend on; where it is there, it is taken.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpt2train.checkpoint.format import Device
from gpt2train.checkpoint.merge import find_source, find_tokenizer
from gpt2train.checkpoint.store import FOLDER, MANIFEST, list_checkpoints, read_manifest, sha256, stored_shape
from gpt2train.config import CONFIG_FILE
from gpt2train.data.tokenizer import load_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.evaluate.files import MARK, write_result
from gpt2train.evaluate.lambada import evaluate_lambada
from gpt2train.evaluate.passages import read_passages
from gpt2train.evaluate.perplexity import wikitext_perplexity
from gpt2train.evaluate.subject import SCORES, Subject, read_checkpoint
from gpt2train.parallel.mesh import from_first

VERSION = 1  # of the rules by which a result is made; a change of them makes all results anew

Scored = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """One thing that checkpoints are scored by."""

    kind: str
    """Its name in the results."""
    about: Mapping[str, Any]
    """The file's name and hash, and what else changes the numbers."""
    score: Callable[[Subject, dist.ProcessGroup | None], Scored]
    """From a model to a result."""


def lambada_measure(text: str, about: Mapping[str, Any], batch_tokens: int) -> Measure:
    """LAMBADA by its three definitions.

    Raises:
        UserError: the text is no set of passages.
    """
    passages = read_passages(text.encode(), about["data"])
    return Measure(
        "lambada",
        about,
        lambda it, group: evaluate_lambada(it.model, it.tokenizer, passages, batch_tokens, group=group),
    )


def wikitext_measure(text: str, about: Mapping[str, Any], stride: int, batch_tokens: int) -> Measure:
    """WikiText by Megatron-LM's rules."""
    return Measure(
        "wikitext",
        {**about, "stride": stride},
        lambda it, group: wikitext_perplexity(it.model, it.tokenizer, text, stride, batch_tokens, group=group),
    )


def score_run(
    run: Path,
    measures: Sequence[Measure],
    tokenizer: Path | None = None,
    device: Device = "cpu",
    group: dist.ProcessGroup | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Scored:
    """Score each checkpoint that a run has kept, oldest first.

    Args:
        measures: what to score by; without any, the validation losses alone make the curve.
        tokenizer: folder of the training's tokenizer, where it is not beside its data.
        group: processes that share the work; the first one reads and writes the results.
        report: told after every checkpoint how many are done and how many there are.

    Returns:
        JSON-able: `run`, `points` (`step`, `samples`, `tokens`, `valid_loss`, and the results by their kinds), and
        how many results were `reused`.

    Raises:
        UserError: it is no run folder, no checkpoint is there, or its tokenizer is not found.
        RunError: a checkpoint is damaged.
    """
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"{run} is no run folder (no {CONFIG_FILE}); a curve is drawn over the checkpoints of one run")
    # As the first process sees them: a run that goes on makes new ones and removes old ones.
    names = _agreed(lambda: [path.name for path in list_checkpoints(run)], group)
    if not names:
        raise UserError(f"no checkpoint in {run / FOLDER}; give the folder of a run that has saved one")
    points, reused = [], 0
    for checkpoint in (run / FOLDER / name for name in names):
        manifest = read_manifest(checkpoint)
        position = manifest.position
        point: Scored = {
            "step": position.step,
            "samples": position.samples,
            "tokens": position.samples * stored_shape(manifest, checkpoint).context,
            "valid_loss": manifest.valid_loss,
        }
        words = find_tokenizer(find_source(checkpoint), tokenizer) if measures else run
        subject = functools.cache(functools.partial(_subject, checkpoint, device, words))
        for measure in measures:
            file = run / SCORES / checkpoint.name / f"{measure.kind}-{_key(checkpoint, measure, words)}.json"
            result = _agreed(functools.partial(_read, file), group)
            reused += result is not None
            if result is None:
                result = {**measure.about, **measure.score(subject(), group)}
                if group is None or dist.get_rank(group) == 0:
                    write_result(file, result)
            point[measure.kind] = result
        points.append(point)
        if report is not None:
            report(len(points), len(names))
    return {"run": run.name, MARK: {m.kind: m.about[MARK] for m in measures}, "points": points, "reused": reused}


def _subject(checkpoint: Path, device: Device, tokenizer: Path) -> Subject:
    return Subject(read_checkpoint(checkpoint, device), load_tokenizer(tokenizer), checkpoint)


def _key(checkpoint: Path, measure: Measure, tokenizer: Path) -> str:
    """Hash of all that a result depends on. The manifest of a checkpoint has the hashes of its files."""
    weights, words = sha256(checkpoint / MANIFEST), tokenizer_hash(tokenizer)
    parts = [VERSION, weights, words, measure.kind, dict(measure.about)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _read(file: Path) -> Scored | None:
    """An older result; None where there is none, or none that can be read."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and MARK in found else None


def _agreed(look: Callable[[], Any], group: dist.ProcessGroup | None) -> Any:
    """What the first process sees."""
    return look() if group is None else from_first(look, group)
