"""Rows of a task as sequences of tokens: cut to the maximum length, or rejected with a reason."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt2train.data.tokenizer import Tokenizer, encode_ordinary, end_of_text_id
from gpt2train.errors import UserError
from tasks.finetune.rows import Row
from tasks.finetune.settings import TaskSettings

INTEGER = re.compile(r"-?\d+")
UNLABELLED = ("", "-1")  # labels of published test sets, whose answers are not


@dataclass(frozen=True)
class Sample:
    """Sequences of one sample, as `gpt2train.data.task_data` has them."""

    sequences: list[list[int]]
    truncated: bool = False


@dataclass(frozen=True)
class Rejected:
    """Reason code of a row that is no sample, and a detail."""

    reason: str
    detail: str = ""


class Encoding:
    """Function from rows to samples.

    Args:
        task: the task.
        labels: names of the classes of a classification, in the order of their numbers.
        tokenizer: tokenizer of the model.
        length: maximum tokens of a sample.
    """

    def __init__(self, task: TaskSettings, labels: Sequence[str], tokenizer: Tokenizer, length: int) -> None:
        self.task, self.tokenizer, self.length = task, tokenizer, length
        self.numbers = {name: number for number, name in enumerate(labels)}
        self.end = end_of_text_id(tokenizer)
        self.separator = self._encode([task.separator])[0]

    def __call__(self, rows: Sequence[Row], place: str, *, labelled: bool = True) -> list[Sample | Rejected]:
        """Encode rows.

        Args:
            rows: rows of a file.
            place: name of the file, for error messages.
            labelled: a row of a classification without a label is rejected; otherwise it gets the label 0.

        Raises:
            UserError: a label is none of the task.
        """
        parts = [self._texts(row, place, labelled) for row in rows]
        texts = [text for part in parts if not isinstance(part, Rejected) for text in part[0]]
        encoded = iter(self._encode(texts))
        return [
            part if isinstance(part, Rejected) else self._sample([next(encoded) for _ in part[0]], part[1])
            for part in parts
        ]

    def text_of(self, row: Row) -> str:
        """Texts of a row as one string."""
        return "\0".join(self._values(row))

    def key_of(self, row: Row) -> str:
        """Texts of a row as one string, which two rows share that must not be on two sides of a holdout."""
        return "\0".join(sorted(self._values(row))) if self.task.both_orders else self.text_of(row)

    def exchanged(self, row: Row) -> Row:
        """Return the row of a pair with its texts exchanged."""
        first, second = self.task.text_columns
        return row._replace(values=row.values | {first: row.values.get(second), second: row.values.get(first)})

    def label_of(self, row: Row, place: str) -> int | None:
        """Number of a row's label; None for a row without one.

        Raises:
            UserError: it is none of the task's labels.
        """
        name = label_name(row.values.get(self.task.data.label))
        if name in self.numbers:
            return self.numbers[name]
        if name is None or name in UNLABELLED:
            return None
        # Files may have the numbers of named labels.
        if INTEGER.fullmatch(name) and 0 <= int(name) < len(self.numbers):
            return int(name)
        known = ", ".join(list(self.numbers)[:20])
        raise UserError(
            f"{place}, row {row.number:,}: the label {name[:40]!r} is none of {known}; correct it, or data.labels"
        )

    def _values(self, row: Row) -> list[str]:
        return [str(row.values.get(name)) for name in self.task.text_columns]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return encode_ordinary(self.tokenizer, texts) if texts else []

    def _texts(self, row: Row, place: str, labelled: bool) -> tuple[list[str], int] | Rejected:
        """Texts of a row that are encoded, and the number of its label; or the reason why there are none."""
        if row.reason:
            return Rejected(row.reason, row.detail)
        if self.task.data.messages is not None:
            return self._turns(row.values.get(self.task.data.messages))
        texts = []
        for name in self.task.text_columns:
            text = row.values.get(name)
            if not isinstance(text, str) or not text.strip():
                missing = "is missing" if text is None else "is empty" if isinstance(text, str) else "is no text"
                return Rejected("no_text", f"{name} {missing}")
            if not _is_utf8(text):
                return Rejected("invalid_utf8", f"{name} has a lone surrogate")
            texts.append(text)
        if self.task.kind != "classification":
            return (texts if self.task.kind == "text" else [texts[0] + self.task.prompt_end, texts[1]]), 0
        label = self.label_of(row, place)
        if label is None and labelled:
            return Rejected("no_label", f"{self.task.data.label} is missing")
        return texts, label or 0

    def _turns(self, messages: Any) -> tuple[list[str], int] | Rejected:
        """Prompts and answers of a conversation in turn: what precedes each answer is one prompt."""
        if not isinstance(messages, list) or not messages:
            return Rejected("no_text", f"{self.task.data.messages} is no list of messages")
        found, prompt = [], ""
        for message in messages:
            role, content = (message.get(key) if isinstance(message, dict) else None for key in ("role", "content"))
            if not isinstance(content, str) or not content.strip() or not _is_utf8(content):
                return Rejected("no_text", "a message has no content")
            if role == "assistant":
                found += [prompt, content]
                prompt = ""
            elif role in ("user", "system"):
                prompt += content + self.task.prompt_end
            else:
                return Rejected("unknown_role", f"{str(role)[:40]!r}: user, assistant or system expected")
        return (found, 0) if found else Rejected("no_answer", "no message of the assistant")

    def _sample(self, encoded: list[list[int]], label: int) -> Sample | Rejected:
        match self.task.kind:
            case "text":
                return Sample([[*encoded[0], self.end]])
            case "answers":
                return self._answers(encoded)
        if not all(encoded):
            return Rejected("no_text", "a text has no tokens")
        kept = shorten(encoded, self.length - len(self.separator) * (len(encoded) - 1))
        if not all(kept):
            return Rejected("too_long", f"both texts do not fit {self.length} tokens")
        tokens = kept[0] if len(kept) == 1 else [*kept[0], *self.separator, *kept[1]]
        return Sample([tokens, [label]], truncated=kept != encoded)

    def _answers(self, encoded: list[list[int]]) -> Sample | Rejected:
        """Sequences of prompts and answers. What does not fit is cut: whole turns first, then the first prompt's start.

        An answer is never cut: the model would learn to stop in the middle.
        """
        limit = self.length + 1  # tokens; the last one is a target alone
        turns = [(encoded[n], [*encoded[n + 1], self.end]) for n in range(0, len(encoded), 2)]
        truncated = False
        while len(turns) > 1 and sum(len(prompt) + len(answer) for prompt, answer in turns) > limit:
            turns, truncated = turns[1:], True
        over = sum(len(prompt) + len(answer) for prompt, answer in turns) - limit
        if over > 0:
            prompt, answer = turns[0]
            if over >= len(prompt):
                return Rejected("too_long", f"an answer of {len(answer)} tokens, at most {self.length} fit")
            turns, truncated = [(prompt[over:], answer)], True
        return Sample([part for turn in turns for part in turn], truncated)


def label_name(value: Any) -> str | None:
    """Label of a row as text: numbers of JSON and Parquet as in text files; None if there is none."""
    if value is None or isinstance(value, list | dict):
        return None
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value).strip()


def sort_labels(names: set[str]) -> tuple[str, ...]:
    """Labels in their order: by number if all are integers, else by name."""
    if all(INTEGER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def shorten(texts: Sequence[list[int]], limit: int) -> list[list[int]]:
    """Cut token lists at their end to `limit` in all, the longest first, as `transformers` cuts pairs."""
    lengths = [len(text) for text in texts]
    over = max(0, sum(lengths) - max(0, limit))
    if len(lengths) == 1:
        return [list(texts[0][: lengths[0] - over])]
    # One token at a time from the longer text, from the second one if they are equal, in closed form.
    long = 0 if lengths[0] > lengths[1] else 1
    first = min(over, abs(lengths[0] - lengths[1]))
    cut = [0, 0]
    cut[long] = first
    rest = over - first
    cut[1] += (rest + 1) // 2
    cut[0] += rest // 2
    return [list(text[: max(0, length - less)]) for text, length, less in zip(texts, lengths, cut, strict=True)]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
