"""Rows of a task as sequences of tokens: cut to the maximum length, or rejected with a reason."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpt2train.data.chat import Chat, with_text, without_first_turn
from gpt2train.data.chat_template import ChatTemplateError, Message
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
        chat: encoder of conversations, for answers.
    """

    def __init__(
        self, task: TaskSettings, labels: Sequence[str], tokenizer: Tokenizer, length: int, chat: Chat | None = None
    ) -> None:
        self.task, self.tokenizer, self.length, self.chat = task, tokenizer, length, chat
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
            RunError: the chat template takes too much time or memory.
        """
        if self.chat is not None:
            return [self._conversation(row, self.chat) for row in rows]
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
        if self.task.kind != "answers":
            return "\0".join(sorted(self._values(row))) if self.task.both_orders else self.text_of(row)
        given = row.values.get(self.task.text_columns[0])  # the question alone: its answers may differ
        if not isinstance(given, list):
            return str(given)
        roles = [one.get("role") if isinstance(one, dict) else None for one in given]
        return str(given[: roles.index("assistant")] if "assistant" in roles else given)

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
        texts = self._columns(row)
        if isinstance(texts, Rejected) or self.task.kind != "classification":
            return texts if isinstance(texts, Rejected) else (texts, 0)
        label = self.label_of(row, place)
        if label is None and labelled:
            return Rejected("no_label", f"{self.task.data.label} is missing")
        return texts, label or 0

    def _columns(self, row: Row) -> list[str] | Rejected:
        """Texts of a row."""
        if row.reason:
            return Rejected(row.reason, row.detail)
        texts = []
        for name in self.task.text_columns:
            text = row.values.get(name)
            if not isinstance(text, str) or not text.strip():
                missing = "is missing" if text is None else "is empty" if isinstance(text, str) else "is no text"
                return Rejected("no_text", f"{name} {missing}")
            if not _is_utf8(text):
                return Rejected("invalid_utf8", f"{name} has a lone surrogate")
            texts.append(text)
        return texts

    def _messages(self, row: Row) -> Sequence[Message] | Rejected:
        """Conversation of a row."""
        name = self.task.data.messages
        if name is None or row.reason:
            texts = self._columns(row)
            if isinstance(texts, Rejected):
                return texts
            return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]
        messages = row.values.get(name)
        if not isinstance(messages, list) or not messages:
            return Rejected("no_text", f"{name} is no list of messages")
        if wrong := [one for one in messages if not (isinstance(one, dict) and isinstance(one.get("role"), str))]:
            found = f"; it has {', '.join(map(repr, wrong[0]))}"[:200] if isinstance(wrong[0], dict) else ""
            return Rejected("no_text", f"a message has no role{found}")
        messages = [with_text(one) for one in messages]
        for message in messages:
            content = message.get("content")
            is_call = not content and bool(message.get("tool_calls"))
            if not (is_call or isinstance(content, list) or (isinstance(content, str) and content.strip())):
                return Rejected("no_text", "a message has no content")
        if not _is_utf8(json.dumps(messages, ensure_ascii=False, default=str)):
            return Rejected("invalid_utf8", f"{name} has a lone surrogate")
        if all(message["role"] != "assistant" for message in messages):
            roles = ", ".join(repr(role) for role in dict.fromkeys(message["role"] for message in messages))
            return Rejected("no_answer", f"no message of the role 'assistant', but of {roles}"[:200])
        return messages

    def _conversation(self, row: Row, chat: Chat) -> Sample | Rejected:
        """Sequences of prompts and answers. What does not fit is cut: whole turns first, then the first prompt's start.

        An answer is never cut: the model would learn to stop in the middle.
        """
        messages = self._messages(row)
        if isinstance(messages, Rejected):
            return messages
        limit = self.length + 1  # tokens; the last one is a target alone
        tools = row.values.get(self.task.data.tools) if self.task.data.tools is not None else None
        if not isinstance(tools, list | None):
            return Rejected("template", f"{self.task.data.tools} is no list of tools")
        try:
            sequences, truncated = learned(messages, chat.turns(messages, tools)), False
            while sum(map(len, sequences)) > limit and (fewer := without_first_turn(messages)):
                messages = fewer
                sequences, truncated = learned(messages, chat.turns(messages, tools)), True
        except ChatTemplateError as error:
            return Rejected("template", str(error))
        if not sequences:
            return Rejected("no_answer", "no answer of a weight other than 0")
        over = sum(map(len, sequences)) - limit
        if over > 0:
            if over >= len(sequences[0]):
                answer = len(sequences[1])
                return Rejected("too_long", f"an answer of {answer} tokens, at most {self.length} fit")
            sequences, truncated = [sequences[0][over:], *sequences[1:]], True
        return Sample(sequences, truncated)

    def _sample(self, encoded: list[list[int]], label: int) -> Sample | Rejected:
        if self.task.kind == "text":
            return Sample([[*encoded[0], self.end]])
        if not all(encoded):
            return Rejected("no_text", "a text has no tokens")
        kept = shorten(encoded, self.length - len(self.separator) * (len(encoded) - 1))
        if not all(kept):
            return Rejected("too_long", f"both texts do not fit {self.length} tokens")
        tokens = kept[0] if len(kept) == 1 else [*kept[0], *self.separator, *kept[1]]
        return Sample([tokens, [label]], truncated=kept != encoded)


def learned(messages: Sequence[Message], sequences: Sequence[list[int]]) -> list[list[int]]:
    """Join answers of weight 0, which OpenAI's format has for those that are not learned, to the prompt after them."""
    weights = [message.get("weight") for message in messages if message["role"] == "assistant"]
    found: list[list[int]] = [[]]
    for number, sequence in enumerate(sequences):
        if number % 2 and weights[number // 2] != 0:
            found += [sequence, []]
        else:
            found[-1] = [*found[-1], *sequence]
    return found[:-1]  # nothing is learned behind the last answer


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
