"""Evaluation as an extension: the scores of a model on one data file; does not import torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpt2train.evaluate.metrics import Metric, Result
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, DistributedScorer, Report, Score, ScoringRequest
from gpt2train.settings import Settings

if TYPE_CHECKING:
    import torch.distributed as dist

    from gpt2train.data.tokenizer import Tokenizer
    from gpt2train.model.causal_lm import CausalLM


@dataclass(frozen=True)
class Scorer:
    """Model under evaluation.

    Attributes:
        model: model in this process or distributed over several.
        tokenizer: tokenizer of the model.
        batch_tokens: input tokens per batch, including padding; bounds the memory.
        report: called after every batch with the numbers of finished and of all requests.
        group: processes that share the work (`gpt2train.evaluate.scoring.score`).
    """

    model: "CausalLM | DistributedScorer"
    tokenizer: "Tokenizer"
    batch_tokens: int = BATCH_TOKENS
    report: Report | None = None
    group: "dist.ProcessGroup | None" = None

    @property
    def context(self) -> int:
        """Maximum inputs of the model, in tokens."""
        return self.model.shape.context

    def score(self, requests: Sequence[ScoringRequest]) -> list[Score]:
        """Score every request exactly once; the scores are in the order of the requests.

        Args:
            requests: requests of 2 to context + 1 tokens each (the last token is never an input).

        Raises:
            RunError: the model's outputs are not finite, or the processes have different requests.
        """
        from gpt2train.evaluate.scoring import score  # here, since it imports torch (1-2 s)

        return score(self.model, requests, self.batch_tokens, self.report, self.group)

    def score_shared(self, requests: Sequence[ScoringRequest]) -> list[Score]:
        """Score every request as `score` does, up to rounding, but common prefixes once, as those of a question."""
        from gpt2train.evaluate.scoring import score_shared  # here, since it imports torch (1-2 s)

        return score_shared(self.model, requests, self.batch_tokens, self.report, self.group)


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of a model on one data file.

    Attributes:
        help: one sentence for the command's help.
        data: content and format of the data file, for the command's help.
        read: function from the content and the name of the data file to the data.
            Raises `UserError` with that name if the file is malformed.
        run: function from model, data and settings to a JSON-serialisable result. It has the metrics, and may have
            `notes`, a list of lines on suspicious scores.
        metrics: metrics of the result, in the order of the table.
        summary: function from a result to the first line of the table: the size of the data.
        settings: settings model; its fields are flags of the command.
        identity: hash of a description outside of the code, which results depend on as on the data.
        counts: name of each count in the manifest of a flow -> its key in the result.
    """

    help: str
    data: str
    read: Callable[[bytes, str], Any]
    run: Callable[[Scorer, Any, Any], Result]
    metrics: tuple[Metric, ...]
    summary: Callable[[Mapping[str, Any]], str] | None = None
    settings: type[Settings] = Settings
    counts: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""

    def evaluate(self, scorer: Scorer, data: Any, settings: Settings | None = None) -> Result:
        """Score a model on what `read` returned; the result has the settings too, which have defaults."""
        chosen = settings or self.settings()
        result = self.run(scorer, data, chosen)
        return result | chosen.model_dump(mode="json") | result  # the keys of the result first, with its values
