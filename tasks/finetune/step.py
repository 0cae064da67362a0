"""The samples step: rows of a task's files to token files of samples, `task/`.

    task/train.bin, .idx            token files of the training samples, also of valid and test
    task/valid.rows, test.rows      file and row of each sample, one line of JSON each, in the order of the samples
    task/tokenizer.json, …          the tokenizer of the model
    task/chat_template.jinja        the template of answers, and special_tokens_map.json the tokens that it names
    task/rejected/train.parquet     the rows that are no samples, with their reasons

A document of a token file is one sample (`gpt2train.data.task_data`); for the kind text it is a text, as in
pretraining.
"""

import contextlib
import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import ChatTemplate, chat_files, default_template, read_chat_template
from gpt2train.data.indexed import token_dtype, write_index
from gpt2train.data.tokenizer import canonical_files, load_tokenizer, open_tokenizer, tokenizer_hash, vocab_size
from gpt2train.data.tokenizer_reader import read_files
from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.input_files import InputFile, commits_of, where_to_read
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, rejected_row, write_rows
from tasks.core.step import Step
from tasks.finetune.encoding import UNLABELLED, Encoding, Rejected, Sample, label_name, sort_labels
from tasks.finetune.rows import Row, find_files, read_rows
from tasks.finetune.settings import MAX_LABELS, PARTS, PROMPT_END, TaskSettings

log = logging.getLogger("gpt2train")

FOLDER = "task"
ROWS = 1000  # encoded at a time
HOLDOUT_UNITS = 10**9
DATE = "2024-07-26"  # that a template writes, by the clock otherwise; Llama's writes it where it knows no clock


class TaskFiles:
    """Files of a task by part, found and hashed once.

    Raises:
        UserError: a file is missing or cannot be read.
    """

    def __init__(self, task: TaskSettings) -> None:
        given = {part: task.data.files(part) for part in PARTS}
        self.of = {part: tuple(find_files(patterns, part)) if patterns else () for part, patterns in given.items()}

    def check(self, task: TaskSettings) -> None:
        """Read the first rows of each file.

        Raises:
            UserError: a file is empty, not of its format, or lacks a column.
        """
        for part, files in self.of.items():
            for file in files:
                first = next((row for row in read_rows(file, task) if not row.reason), None)
                if part == "test" or task.kind != "classification" or first is None:
                    continue
                if task.data.label not in first.values:
                    shown = ", ".join(map(repr, list(first.values)[:20]))
                    raise UserError(
                        f"{file.location} has no column {task.data.label!r}; it has {shown}; name it in data.label"
                    )


def samples(
    root: Folder,
    task: TaskSettings,
    files: TaskFiles,
    tokenizer: Path,
    model: str,
    length: int,
    runner: Runner,
    rows: int | None = None,
) -> Manifest:
    """Write the samples of a task, of at most `length` tokens each -> `task/`.

    `tokenizer`, `rows` and `model` are the tokenizer folder, the vocabulary size and the identity of the model, so that
    tuning another one is another training.

    Raises:
        UserError: no row of a part is a sample, or a label is none of the task.
    """
    parameters = task.model_dump(mode="json", exclude={"train": True, "data": {"train", "valid", "test"}})
    parameters["length"] = length
    inputs = {"tokenizer": tokenizer_hash(tokenizer, rows), "model": model}
    inputs |= {part: "+".join(file.identity for file in found) for part, found in files.of.items() if found}
    template = answer_template(task, tokenizer, rows)
    chat = {} if template is None else chat_files(template)
    if chat:
        parameters["chat"] = hashlib.blake2b(b"\0".join(chat.values()), digest_size=16).hexdigest()
    step = Step(
        root,
        "samples",
        version=3,
        parameters=parameters,
        inputs=inputs,
        folder=FOLDER,
        packages=("tokenizers", "pyarrow"),
        commits=commits_of(file for found in files.of.values() for file in found),
    )
    if done := runner.finished(step):
        return done
    labels = task.data.labels
    if task.kind == "classification" and not labels:
        labels = found_labels(files.of["train"], task)
    items = [(part, found, False) for part, found in files.of.items() if found]
    if task.data.holdout:
        items.append(("valid", files.of["train"], True))
    where = where_to_read([file for found in files.of.values() for file in found], root)
    arguments = (task, labels, str(tokenizer), length, template)
    outcomes = runner.batches(step, "part", items, samples_part, *arguments, where=where)
    beside = {**canonical_files(read_files(tokenizer, rows), str(tokenizer)), **chat}
    beside["labels.json"] = json.dumps(labels, ensure_ascii=False).encode() + b"\n"
    for name, data in beside.items():
        step.folder.write_bytes(name, data)
    extra = Outcome(outputs=tuple(map(step.folder.record, beside)), facts={"labels": len(labels)})
    total = Outcome.total([*outcomes, extra])
    _warn(total, [part for part, _, _ in items])
    return step.commit(total)


def samples_part(
    folder: Folder,
    name: str,
    item: tuple[str, Sequence[InputFile], bool],
    task: TaskSettings,
    labels: Sequence[str],
    tokenizer_folder: str,
    length: int,
    template: ChatTemplate | None = None,
) -> Outcome:
    """Write the token files of one part.

    The item is the part, its files, and True for the rows of training files that are held out.
    """
    part, files, _ = item
    tokenizer = load_tokenizer(tokenizer_folder)
    dtype = token_dtype(max(vocab_size(tokenizer), len(labels)))
    lengths: list[int] = []
    starts = [0]
    rejected: list[dict[str, Any]] = []
    truncated = tokens = exchanged = 0
    with (
        Chat(template, tokenizer, DATE) if template else contextlib.nullcontext() as chat,
        folder.writing(f"{part}.bin") as draft,
        folder.writing(f"{part}.rows") as places,
        draft.open("wb") as out,
        places.open("w", encoding="utf-8") as where,
    ):
        encoding = Encoding(task, labels, tokenizer, length, chat)
        for file, row, found, turned in _encoded(item, task, encoding):
            if isinstance(found, Rejected):
                identified = {"id": str(row.number), "source": file.name, "text": encoding.text_of(row)}
                rejected.append(rejected_row(identified, found.reason, found.detail))
                continue
            truncated += found.truncated
            exchanged += turned
            tokens += sum(map(len, found.sequences))
            out.writelines(np.asarray(sequence, dtype=dtype).tobytes() for sequence in found.sequences)
            lengths += map(len, found.sequences)
            starts.append(len(lengths))
            unknown = task.kind == "classification" and encoding.label_of(row, file.name) is None
            place = {"file": file.name, "row": row.number} | ({"labelled": False} if unknown else {})
            place |= {"exchanged": True} if turned else {}
            where.write(json.dumps(place, ensure_ascii=False) + "\n")
    count = len(starts) - 1
    reasons = dict(sorted(Counter(row["reason"] for row in rejected).items()))
    if not count:
        what = f"the {part} files have no row that can be used" if not item[2] else "data.holdout leaves no row"
        why = ", ".join(f"{reason} {number:,}" for reason, number in reasons.items()) or "no rows"
        said = next((f": {row['detail']}" for row in rejected if row["detail"]), "")
        raise UserError(f"{what} ({why}){said}; check {files[0].location}")
    with folder.writing(f"{part}.idx") as draft:
        write_index(draft, lengths, dtype, np.asarray(starts))
    dropped = (write_rows(folder, f"rejected/{part}.parquet", rejected, REJECTED),) if rejected else ()
    return Outcome(
        outputs=tuple(folder.record(f"{part}.{suffix}") for suffix in ("bin", "idx")),
        rejected=dropped,
        audit=(folder.record(f"{part}.rows", rows=count),),
        seen=count - exchanged + len(rejected),
        kept=count - exchanged,
        reasons=reasons,
        facts={f"{part}_samples": count, f"{part}_tokens": tokens, f"{part}_truncated": truncated},
    )


def answer_template(task: TaskSettings, tokenizer: Path, rows: int | None) -> ChatTemplate | None:
    """Return the chat template by which answers are learned: the model's own, or the default; None for other kinds.

    Raises:
        UserError: the model's own is damaged, and `prompt_end` is for a model without one.
    """
    if task.kind != "answers":
        return None
    opened = open_tokenizer(read_files(tokenizer, rows), str(tokenizer))
    own = read_chat_template(tokenizer, opened)
    if own is not None and task.prompt_end != PROMPT_END:
        raise UserError(f"prompt_end is for a model without a chat template, and {tokenizer} has one; leave it out")
    return own or default_template(opened, task.prompt_end)


def check_template(task: TaskSettings, tokenizer: Path, rows: int | None) -> None:
    """Check that answers can be learned by the chat template of a model.

    Raises:
        UserError: they cannot.
    """
    template = answer_template(task, tokenizer, rows)
    if template is not None:
        with Chat(template, open_tokenizer(read_files(tokenizer, rows), str(tokenizer)), DATE) as chat:
            try:
                chat.check()
            except (UserError, RunError) as error:
                raise UserError(f"{tokenizer}: {error}") from error


def found_labels(files: Sequence[InputFile], task: TaskSettings) -> tuple[str, ...]:
    """Labels that the training rows have, sorted.

    Raises:
        UserError: there are fewer than two, or too many to be labels.
    """
    found: set[str] = set()
    for file in files:
        for row in read_rows(file, task):
            name = label_name(row.values.get(task.data.label))
            if name is not None and name not in UNLABELLED:
                found.add(name)
            if len(found) > MAX_LABELS:
                raise UserError(f"{file.location}: {task.data.label!r} has over {MAX_LABELS:,} values; it is no label")
    if len(found) < 2:
        raise UserError(
            f"{files[0].location}: {task.data.label!r} has {len(found)} labels; a classification needs two or more"
        )
    return sort_labels(found)


def is_held_out(text: str, share: float) -> bool:
    """Return True if a row with this text is for validation, in place of training."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HOLDOUT_UNITS < share * HOLDOUT_UNITS


def _encoded(
    item: tuple[str, Sequence[InputFile], bool], task: TaskSettings, encoding: Encoding
) -> Iterator[tuple[InputFile, Row, Sample | Rejected, bool]]:
    """Rows of a part with their samples, and True for one with exchanged texts, which follows that of the same row.

    Rejected rows of training files belong to train.
    """
    part, files, held_out = item
    share = task.data.holdout if part == "train" or held_out else 0.0
    for file in files:
        rows = iter(read_rows(file, task))
        while chunk := list(itertools.islice(rows, ROWS)):
            if share:
                chunk = [
                    row for row in chunk if (not row.reason and is_held_out(encoding.key_of(row), share)) == held_out
                ]
            found = encoding(chunk, file.location, labelled=part != "test")
            if part != "train" or not task.both_orders:
                yield from ((file, row, one, False) for row, one in zip(chunk, found, strict=True))
                continue
            turned = encoding([encoding.exchanged(row) for row in chunk], file.location)
            for row, one, other in zip(chunk, found, turned, strict=True):
                yield file, row, one, False
                if isinstance(one, Sample):  # otherwise both are rejected, for one reason
                    yield file, row, other, True


def _warn(total: Outcome, parts: Sequence[str]) -> None:
    for part in parts:
        if cut := total.facts.get(f"{part}_truncated"):
            log.warning("%s: %d of %d samples were cut to max_length", part, cut, total.facts[f"{part}_samples"])
    if total.reasons:
        why = ", ".join(f"{reason} {number:,}" for reason, number in total.reasons.items())
        dropped = total.seen - total.kept
        log.warning("%d of %d rows are no samples (%s); %s/rejected has them", dropped, total.seen, why, FOLDER)
