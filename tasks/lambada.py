"""The evaluate step: LAMBADA by three definitions, perplexity on held-out documents and WikiText, sample generations.

Output `<run folder>/eval/`: `lambada.json`, `perplexity.json`, `samples.json`, and `wikitext.json` where asked for.
They are batches of their own, each in a process with one thread, so that they run side by side and a killed run repeats
at most what was in flight.
"""

import heapq
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pydantic import Field, PositiveInt

from gpt2train.checkpoint.format import Device
from gpt2train.errors import RunError, UserError
from gpt2train.evaluate.files import MARK, about, decode
from gpt2train.evaluate.passages import read_passages
from gpt2train.generate.settings import SamplingSettings
from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import read_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder, read_any

HELD_OUT = "test"


class EvaluateSettings(Settings):
    """What is scored besides LAMBADA, which is always scored whole."""

    max_documents: PositiveInt = 40
    """Held-out documents for the perplexity, those with the smallest ids; an id is a hash, so this is a fair draw."""
    max_characters: int = Field(4000, ge=100)
    """Characters of a held-out document that are scored; a longer one is cut at the last white space before."""
    stride: PositiveInt | None = None
    """Tokens that a perplexity window moves on; half the model's context where not given."""
    wikitext_stride: PositiveInt = 32
    """Tokens that a window moves on over WikiText; the model's context where it is shorter."""
    prompts: tuple[str, ...] = ("This module provides", "The following example shows", "In Python,", "")
    """What the sample generations go on from; an empty prompt begins a new document."""
    sampling: SamplingSettings = SamplingSettings(temperature=0.8, top_k=40)
    """How the sample generations are drawn."""


def evaluate(
    root: Folder,
    model: Manifest,
    lambada: str,
    held_out: Manifest,
    settings: EvaluateSettings,
    runner: Runner,
    *,
    wikitext: str | None = None,
    device: Device = "auto",
    threads: int = 1,
) -> Manifest:
    """Model folder, cloze set and held-out documents -> scores and samples as JSON in `<run folder>/eval/`.

    Args:
        model: of the merge step.
        lambada: path or URL of `{"text": …}` lines.
        held_out: documents (Parquet) with a column `split`; those marked `test` are scored.
        wikitext: path or URL of WikiText in its tokenised form.
        device, threads: where it runs and with how many threads a process; neither is part of the fingerprint.

    Raises:
        UserError: the cloze set is missing or malformed, WikiText is missing or no text, or no document is held out.
    """
    data = read_any(lambada)
    passages = read_passages(data, lambada)
    facts = {"lambada": about(PurePosixPath(lambada).name, data)}
    text = ""
    if wikitext is not None:
        raw = read_any(wikitext)
        text = decode(raw, wikitext)
        facts["wikitext"] = about(PurePosixPath(wikitext).name, raw)
    step = Step(
        root,
        "evaluate",
        version=2,
        parameters=settings,
        inputs={"merge": model, "held_out": held_out, **{kind: fact[MARK] for kind, fact in facts.items()}},
        folder=str(PurePosixPath(model.folder).parent / "eval"),
        packages=("tokenizers", "torch"),
    )
    if done := runner.finished(step):
        return done
    if not root.is_local:
        raise UserError(f"a model is read from a local folder, not from {root.url}; copy the run first")
    place = (root / model.folder).path()
    tasks = ["lambada", "perplexity", "samples", *(["wikitext"] if wikitext is not None else [])]
    outcomes = runner.batches(
        step, "part", tasks, evaluate_part, place, facts, passages, text, root, held_out, settings, device, threads
    )
    return step.commit(Outcome.total(outcomes))


def evaluate_part(
    folder: Folder,
    name: str,
    item: str,
    model_folder: str,
    facts: dict[str, dict[str, str]],
    passages: Sequence[str],
    text: str,
    root: Folder,
    held_out: Manifest,
    settings: EvaluateSettings,
    device: Device,
    threads: int,
) -> Outcome:
    """Write one of the result files."""
    import torch

    from gpt2train.checkpoint.huggingface import read_model
    from gpt2train.data.tokenizer import load_tokenizer
    from gpt2train.evaluate.lambada import evaluate_lambada
    from gpt2train.evaluate.perplexity import document_perplexity, wikitext_perplexity
    from gpt2train.generate.continuation import generate

    torch.set_num_threads(threads)
    model, tokenizer = read_model(Path(model_folder), device), load_tokenizer(model_folder)
    if item == "lambada":
        result = facts[item] | evaluate_lambada(model, tokenizer, passages)
        counts = {"passages": result["passages"], "truncated_passages": result["truncated"]}
    elif item == "wikitext":
        stride = min(settings.wikitext_stride, model.shape.context)
        result = facts[item] | wikitext_perplexity(model, tokenizer, text, stride)
        counts = {"wikitext_tokens": result["tokens"]}
    elif item == "perplexity":
        texts = held_out_texts(root, held_out, settings)
        result = document_perplexity(model, tokenizer, texts, settings.stride)
        counts = {"held_out_documents": result["documents"]}
    else:
        answers = generate(model, tokenizer, settings.prompts, settings.sampling)
        samples = [{"prompt": answer.prompt, "text": answer.text, "stopped": answer.stopped} for answer in answers]
        result = {"sampling": settings.sampling.model_dump(mode="json"), "samples": samples}
        counts = {"samples": len(samples)}
    folder.write_bytes(f"{item}.json", json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")
    return Outcome(outputs=(folder.record(f"{item}.json"),), facts=counts)


def held_out_texts(root: Folder, held_out: Manifest, settings: EvaluateSettings) -> list[str]:
    """Texts of the chosen held-out documents, by ascending id.

    Raises:
        RunError: no document is held out.
    """
    folder = root / held_out.folder
    found: list[tuple[str, str, int]] = []
    for record in held_out.outputs:
        table = read_table(folder, record.name, ["id", "split"])
        rows = zip(table["id"].to_pylist(), table["split"].to_pylist(), strict=True)
        marked = [(identity, record.name, row) for row, (identity, split) in enumerate(rows) if split == HELD_OUT]
        found = heapq.nsmallest(settings.max_documents, [*found, *marked])
    if not found:
        raise RunError(
            f"no document of {held_out.folder} is held out (split {HELD_OUT!r}); use more pages or a larger test split"
        )
    texts = {}
    for shard in sorted({shard for _, shard, _ in found}):
        column = read_table(folder, shard, ["text"])["text"]
        texts.update({(shard, row): column[row].as_py() for _, name, row in found if name == shard})
    return [cut(texts[shard, row], settings.max_characters) for _, shard, row in found]


def cut(text: str, limit: int) -> str:
    """The head of a text, at most `limit` characters, whole words where it has any."""
    if len(text) <= limit:
        return text
    head = text[: limit + 1].rsplit(maxsplit=1)
    return head[0] if len(head) == 2 else text[:limit]
