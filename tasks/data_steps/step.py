"""Execution of a registered data step: one batch per shard of documents, rejected rows with their reasons."""

from collections.abc import Callable
from typing import Any

from gpt2train.errors import RunError
from gpt2train.settings import Settings
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.clean.filters.verdict import Rejection
from tasks.clean.token_counts import count_tokens
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, commit_rows, read_rows, rejected_row
from tasks.core.step import Step
from tasks.core.tokenizer_file import TokenizerFile, tokenizer_file
from tasks.data_steps.registry import DataStep

MIN_TOKENS = "min_tokens"  # parameter of the cleaning that applies to later steps too


def function_of(data_step: DataStep) -> Callable[..., Manifest]:
    """Return the step function of a registered step, with the step's name.

    It processes documents of schema `shards.CLEAN`, one batch per shard. `id`, `url` and `split` are unchanged. The
    tokens of a changed text are counted again, with the tokenizer of the cleaning, and a text with fewer than the
    minimum of the cleaning is rejected as `too_short`.
    """

    def run(
        root: Folder, documents: Manifest, settings: Settings, *, runner: Runner, tokenizer: Manifest | None = None
    ) -> Manifest:
        min_tokens = int(documents.parameters.get(MIN_TOKENS, 0))
        step = Step(
            root,
            data_step.name,
            version=data_step.version,
            parameters={MIN_TOKENS: min_tokens, **settings.model_dump(mode="json")},
            folder=f"data_steps/{data_step.name}",  # apart: its name cannot be that of another folder of the output
            inputs={"documents": documents} | ({"tokenizer": tokenizer} if tokenizer else {}),
            packages=("tokenizers", "unicodedata", *data_step.packages),
        )
        if done := runner.finished(step):
            return done
        source, counter = root / documents.folder, tokenizer and tokenizer_file(root, tokenizer)
        names = [record.name for record in documents.outputs]
        options = (data_step.process, settings, min_tokens, counter)
        outcomes = runner.batches(step, "part", names, process_part, source, *options)
        return step.commit(Outcome.total(outcomes))

    run.__name__ = data_step.name
    return run


def process_part(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    process: Callable[[dict[str, Any], Any], str | Rejection],
    settings: Settings,
    min_tokens: int,
    tokenizer: TokenizerFile | None,
) -> Outcome:
    """Process one shard; runs in a worker.

    Raises:
        RunError: the function of the plug-in returned neither a text nor a rejection.
    """
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    changed = 0
    for row in read_rows(source, part):
        result = process(dict(row), settings)
        if isinstance(result, str) and result != row["text"]:
            [tokens] = count_tokens([result], tokenizer)
            row, changed = {**row, "text": result, "tokens": tokens}, changed + 1
            if tokens < min_tokens or not result.strip():
                result = Rejection("too_short", f"{tokens} tokens left, at least {min_tokens} expected")
        if isinstance(result, str):
            kept.append(row)
        elif isinstance(result, Rejection):
            rejected.append(rejected_row(row, result.reason, result.detail))
        else:
            place = f"data step: {process.__module__}.{process.__qualname__}"
            raise RunError(f"{place} returned {type(result).__name__}; return the text to keep, or a Rejection")
    return commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, {"changed": changed})
