"""Scores on tasks during a training, as `gpt2train evaluate` gives them for the checkpoint of the same step."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2train.config import RunConfig
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.evaluate.metrics import Result
from gpt2train.evaluate.scoring import batches, score_batch
from gpt2train.evaluate.scoring_request import Score, ScoringRequest
from gpt2train.evaluate.tasks.description import Suite
from gpt2train.evaluate.tasks.scores import PlannedTask, measures, plan_task
from gpt2train.evaluate.tasks.suite import Work, joined, read_work
from gpt2train.evaluate.tasks.table import MEAN
from gpt2train.launch.rank_process import StopRequest
from gpt2train.model.families import MODELS
from gpt2train.model.objectives import OBJECTIVES
from gpt2train.model.shape import Shape
from gpt2train.monitoring.metrics import TASK_PREFIX
from gpt2train.parallel.mesh import any_rank, broadcast_from_rank0
from gpt2train.training.engine import Engine

log = logging.getLogger("gpt2train")


class EngineScorer:
    """Model in training as a `gpt2train.evaluate.scoring_request.DistributedScorer`.

    Its calls are collective: all processes make them with the same arguments, inside of `Engine.evaluating`. The
    data-parallel ranks share the sequences of a call, and every process gets all its results.

    Attributes:
        shape: shape of the model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.shape: Shape = engine.config.shape

    def score(
        self, sequences: Sequence[Sequence[int]], rows: Sequence[int], positions: Sequence[int], targets: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Score targets, as `DistributedScorer.score` defines."""
        engine, layout = self._engine, self._engine.layout
        # Every process runs a forward, since a forward can communicate: one without a sequence takes a row of padding.
        own = range(engine.data_rank, len(sequences), layout.data)
        longest = max(map(len, sequences))
        length = min(-(-longest // layout.tp) * layout.tp, self.shape.context)  # slices of equal length
        tokens = torch.zeros(-(-len(sequences) // layout.data), length, dtype=torch.int64)
        for row, index in enumerate(own):
            tokens[row, : len(sequences[index])] = torch.tensor(sequences[index])
        mine = [at for at, row in enumerate(rows) if row % layout.data == engine.data_rank]
        places = [rows[at] // layout.data for at in mine], [positions[at] for at in mine]
        device, head = engine.ctx.device, engine.model_parts[-1]
        own_targets = torch.tensor([targets[at] for at in mine], dtype=torch.int64, device=device)

        def scored(hidden: Tensor) -> Tensor:
            log_probs, greedy = head.log_probs(hidden[places], own_targets)
            return torch.stack((log_probs, greedy.float()))

        found = engine.logits(tokens.to(device), scored)
        results = torch.zeros(2, len(rows))
        # The tensor-parallel ranks have the same numbers; one of them gives each number, so that the sum is exact.
        if found is not None and layout.coordinates(engine.ctx.rank).tp == 0 and mine:
            results[:, mine] = found.cpu()
        if engine.ctx.world > 1:
            dist.all_reduce(results)
        return results[0], results[1] > 0


class TaskValidation:
    """Scores of the weights of a run on the tasks of `validation.tasks`.

    Rank 0 reads the tasks and their data once, and decides on the answers; all processes compute the log-probabilities.

    Raises:
        UserError: a task or its data is not usable, or the run has no tokenizer or predicts no text.
    """

    def __init__(self, engine: Engine, stop: StopRequest, tokenizer: Tokenizer | None) -> None:
        self._engine, self._stop, self._scorer = engine, stop, EngineScorer(engine)
        self._works: list[tuple[Work, list[PlannedTask]]] = []  # on rank 0

        def read() -> list[ScoringRequest]:
            self._works = _read(engine.config, tokenizer)
            return [request for _, parts in self._works for part in parts for request in part.requests]

        self._requests = broadcast_from_rank0(read)
        # Bounded by the tokens of a step's forward, all data-parallel ranks together.
        layout = engine.layout
        shape = engine.config.shape
        size = layout.micro_batch * layout.data * shape.context
        self._batches = batches(self._requests, size, MODELS[shape.family].independent_length(shape))

    def is_due(self, step: int) -> bool:
        """Return True after every validation that is due, and after the last step."""
        validation, steps = self._engine.config.validation, self._engine.config.steps
        return step % (validation.interval * validation.tasks.every) == 0 or step == steps

    def __call__(self) -> dict[str, float] | None:
        """Score the tasks. Collective.

        Returns:
            Metrics by column, the same on every process, none where the model's outputs are not finite; None if a
            process received a stop request.
        """
        scores: dict[int, Score] = {}
        with self._engine.evaluating():
            for batch in self._batches:
                if any_rank(self._stop.requested):
                    return None
                try:
                    scored = score_batch(self._scorer, [self._requests[index] for index in batch])
                except RunError as error:  # on every process, since all have the same scores
                    log.warning("warning: no scores of tasks: %s", error)
                    return {}
                scores.update(zip(batch, scored, strict=True))
        return broadcast_from_rank0(lambda: self._columns([scores[index] for index in range(len(scores))]))

    def _columns(self, scores: list[Score]) -> dict[str, float]:
        """Return the metrics on rank 0, from the score of each request."""
        columns: dict[str, float] = {}
        start = 0
        for work, parts in self._works:
            found = []
            for part in parts:
                count = len(part.requests)
                found.append(part.result(scores[start : start + count]))
                start += count
            columns |= _of_work(work, joined(work, found)[0])
        return columns


def _read(config: RunConfig, tokenizer: Tokenizer | None) -> list[tuple[Work, list[PlannedTask]]]:
    """Read the tasks of a run and their data, and build the scoring requests.

    Raises:
        UserError: a task or its data is not usable, or the run has no tokenizer or predicts no text.
    """
    settings, context = config.validation.tasks, config.model.context
    if not OBJECTIVES[config.objective.name].predicts_text:
        raise UserError(f"validation.tasks: the objective {config.objective.name} predicts no text; leave them out")
    if tokenizer is None:
        raise UserError(f"validation.tasks need the tokenizer of the run; put it into {config.output}/tokenizer")
    found = []
    for name in settings.names:
        work = read_work(name, Path(settings.data or ""), settings.partial, settings.limit)
        plan = [plan_task(part.task, part.name, part.items, tokenizer, context, settings.limit) for part in work.parts]
        found.append((work, plan))
    return found


def _of_work(work: Work, result: Result) -> dict[str, float]:
    """Return the columns of a task, or the mean of a suite."""
    suite = isinstance(work.description, Suite)
    metrics = [MEAN] if suite else [measure.metric for measure in measures(work.parts[0].task)]
    return {f"{TASK_PREFIX}{work.file}_{metric.name}": float(result[metric.name]) for metric in metrics}
