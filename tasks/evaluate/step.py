"""Evaluate step: LAMBADA by three definitions, perplexity on held-out documents and WikiText, sample generations.

Writes `<run folder>/eval/`: `lambada.json`, `perplexity.json`, `samples.json`, and optionally `wikitext.json` and
`NAME.json` of other evaluations, of tasks and of suites. Each is a batch in its own process with one thread, so that
they run in parallel and a killed run repeats at most the batches in flight.
"""

import heapq
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gpt2train.config.data import TaskSelection
from gpt2train.convert.settings import Device
from gpt2train.errors import UserError
from gpt2train.evaluate.evaluation import Scorer
from gpt2train.evaluate.files import DATA_HASH_KEY, data_fields
from gpt2train.evaluate.perplexity import document_perplexity
from gpt2train.evaluate.registry import BUILT_IN, EVALUATIONS, plugin_versions
from gpt2train.evaluate.tasks.suite import Work, read_works, score_work
from gpt2train.evaluate.wikitext import WikitextSettings
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.input_files import read_any
from tasks.core.runner import Runner
from tasks.core.shards import read_table
from tasks.core.step import Step
from tasks.evaluate.settings import EvaluateSettings

log = logging.getLogger("gpt2train")

HELD_OUT = "test"
OF_THE_RUN = ("perplexity", "samples")  # results that need no data file


def evaluate(
    root: Folder,
    model: Manifest,
    lambada: str | None,
    held_out: Manifest | None,
    settings: EvaluateSettings,
    runner: Runner,
    *,
    wikitext: str | None = None,
    evals: Mapping[str, str] | None = None,
    tasks: TaskSelection | None = None,
    data: Folder | None = None,
    device: Device = "auto",
    threads: int = 1,
) -> Manifest:
    """Score a merged model and generate samples; writes JSON files to `<run folder>/eval/`.

    `lambada` is the path or URL of a file of `{"text": …}` lines, `wikitext` that of WikiText in its tokenised form,
    and `evals` has those of the data of other evaluations by name. `held_out` are documents with a column `split`, in
    the output `data` (by default `root`); without one in `test` there is no `perplexity.json`. Device and threads of
    the processes are not part of the fingerprint.

    Raises:
        UserError: a data file is missing or malformed, there is no evaluation of a name, or the model is not on a
            local disk.
    """
    paths = {**data_files(lambada, wikitext), **(evals or {})}
    files = {name: read_data(name, path) for name, path in paths.items()}
    chosen = tasks or TaskSelection()
    works = {work.file: work for work in read_tasks(chosen, paths)}
    step = Step(
        root,
        "evaluate",
        version=6,
        parameters=settings,
        inputs={
            "merge": model,
            **({} if held_out is None else {"held_out": held_out}),
            **{name: data_fields(paths[name], raw)[DATA_HASH_KEY] for name, raw in files.items()},
            **{f"{name} description": identity for name in paths if (identity := EVALUATIONS[name].identity)},
            **{f"task {name}": work.identity(chosen.limit) for name, work in works.items()},
        },
        folder=str(PurePosixPath(model.folder).parent / "eval"),
        packages=("tokenizers", "torch", *plugin_versions(paths)),
    )
    if done := runner.finished(step):
        return done
    if not root.is_local:
        raise UserError(f"a model is read from a local folder, not from {root.url}; copy the run first")
    model_folder = (root / model.folder).path()
    given: dict[str, Any] = {name: (path, files[name]) for name, path in paths.items()} | works
    given |= {"samples": None} | ({} if held_out is None else {"perplexity": (data or root, held_out)})
    first = [name for name in ("lambada", *OF_THE_RUN) if name in given]
    names = [*first, *(name for name in sorted(paths) if name not in first), *works]
    if is_encoder_decoder(Path(model_folder)):
        log.warning("the model has an encoder and a decoder: samples alone, no cloze score and no perplexity")
        names = ["samples"]
    items = [(name, given[name]) for name in names]
    options = (model_folder, settings, chosen.limit, device, threads)
    total = Outcome.total(runner.batches(step, "part", items, evaluate_part, *options))
    if held_out is not None and "perplexity" in names and not total.facts["held_out_documents"]:
        log.warning(
            f"no document of {held_out.folder} is in the split {HELD_OUT!r}: no perplexity of held-out documents; "
            "for one, give more documents or a larger clean.split.test"
        )
    return step.commit(total)


def is_encoder_decoder(model_folder: Path) -> bool:
    """Return True if a model folder holds an encoder-decoder, whose decoder does not predict a text by itself."""
    return json.loads((model_folder / "config.json").read_bytes()).get("is_encoder_decoder") is True


def data_files(lambada: str | None, wikitext: str | None) -> dict[str, str]:
    """Return the given data files of the built-in evaluations, by name."""
    return {name: path for name, path in (("lambada", lambada), ("wikitext", wikitext)) if path is not None}


def read_data(name: str, path: str) -> bytes:
    """Read the data file of the evaluation of a name, at a path or URL, and check it.

    Raises:
        UserError: there is no such evaluation, or the file is missing or malformed.
    """
    evaluation, raw = EVALUATIONS[name], read_any(path)
    evaluation.read(raw, path)
    return raw


def read_tasks(tasks: TaskSelection, others: Iterable[str]) -> list[Work]:
    """Read tasks and suites with their data.

    Raises:
        UserError: there is no task of a name, or its description or data are missing or malformed.
    """
    return read_works(tasks.names, Path(tasks.data or ""), tasks.partial, tasks.limit, (*BUILT_IN, *others))


def evaluate_part(
    folder: Folder,
    name: str,
    item: tuple[str, Any],
    model_folder: str,
    settings: EvaluateSettings,
    limit: int | None,
    device: Device,
    threads: int,
) -> Outcome:
    """Write one result file.

    The item is the name of the result and what it is made from: output and manifest of the documents (perplexity), a
    task or suite, of each of whose tasks `limit` items are scored, or path and content of the data of an evaluation.
    """
    import torch

    from gpt2train.convert.huggingface import read_model
    from gpt2train.data.tokenizer import load_model_tokenizer
    from gpt2train.inference.generate import generate

    made, given = item
    if made == "perplexity" and not (texts := held_out_texts(given[0], given[1], settings)):
        return Outcome(facts={"held_out_documents": 0})
    torch.set_num_threads(threads)
    model = read_model(Path(model_folder), device)
    tokenizer = load_model_tokenizer(model_folder, model.shape.vocab)
    counts: dict[str, Any] = {}
    if made == "perplexity":
        result = document_perplexity(Scorer(model, tokenizer), texts, settings.stride)
        counts = {"held_out_documents": result["documents"]}
    elif made == "samples":
        answers = generate(model, tokenizer, settings.prompts, settings.sampling)
        samples = [{"prompt": answer.prompt, "text": answer.text, "stopped": answer.stopped} for answer in answers]
        result = {"sampling": settings.sampling.model_dump(mode="json"), "samples": samples}
        counts = {"samples": len(samples)}
    elif isinstance(given, Work):
        result, _ = score_work(Scorer(model, tokenizer), given, limit)
    else:
        evaluation, (path, raw) = EVALUATIONS[made], given
        stride = min(settings.wikitext_stride, model.shape.context)
        options = WikitextSettings(stride=stride) if made == "wikitext" else None
        scores = evaluation.evaluate(Scorer(model, tokenizer), evaluation.read(raw, path), options)
        result = data_fields(PurePosixPath(path).name, raw) | scores
        counts = {name: result[key] for name, key in evaluation.counts.items()}
    folder.write_bytes(f"{made}.json", json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")
    return Outcome(outputs=(folder.record(f"{made}.json"),), facts=counts)


def held_out_texts(root: Folder, held_out: Manifest, settings: EvaluateSettings) -> list[str]:
    """Texts of the held-out documents with the smallest ids, by ascending id."""
    folder = root / held_out.folder
    found: list[tuple[str, str, int]] = []
    for record in held_out.outputs:
        table = read_table(folder, record.name, ["id", "split"])
        rows = zip(table["id"].to_pylist(), table["split"].to_pylist(), strict=True)
        marked = [(identity, record.name, row) for row, (identity, split) in enumerate(rows) if split == HELD_OUT]
        found = heapq.nsmallest(settings.max_documents, [*found, *marked])
    texts = {}
    for shard in sorted({shard for _, shard, _ in found}):
        column = read_table(folder, shard, ["text"])["text"]
        texts.update({(shard, row): column[row].as_py() for _, name, row in found if name == shard})
    return [truncate(texts[shard, row], settings.max_characters) for _, shard, row in found]


def truncate(text: str, limit: int) -> str:
    """Beginning of a text of at most `limit` characters, cut at white space if there is any."""
    if len(text) <= limit:
        return text
    head = text[: limit + 1].rsplit(maxsplit=1)
    return head[0] if len(head) == 2 else text[:limit]
