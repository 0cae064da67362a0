"""Conversations as token ids, by the chat template of a model: the prompt of an answer, and samples for training.

The ids are those of transformers' `apply_chat_template`. The names of special tokens in what somebody says are text, as
with its `sanitize_control_tokens=True`: no message can end a turn or begin another one.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import AddedToken

from gpt2train.data.added_tokens import Added
from gpt2train.data.chat_template import (
    NO_TEMPLATE,
    ChatRenderer,
    ChatTemplate,
    ChatTemplateError,
    Message,
    read_chat_template,
)
from gpt2train.data.sentencepiece_model import SentencePieceTokenizer
from gpt2train.data.tokenizer import Tokenizer, encode_ordinary
from gpt2train.errors import RunError, UserError

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around the name of a special token in a message; no characters of any text
MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}|[{OPEN}{CLOSE}]")
PROBE = ({"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"})


class Chat:
    """Encoder of conversations with a model; `date` is what its template writes, in ISO 8601, None: now."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, date: str | None = None) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.renderer = ChatRenderer(template, date)
        self._special = special_tokens(tokenizer, template.tokens.values())
        self._encode = special_encoder(tokenizer, self._special)
        self._special_ids = frozenset(self._special.values())
        names = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._names = re.compile("|".join(names) or "(?!)")

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encode a conversation and the beginning of the answer that follows.

        Raises:
            ChatTemplateError: the template refuses the conversation, or leaves out a message.
            RunError: the template takes too much time or memory.
        """
        marked = self._messages(messages)
        [text] = self.renderer.render(marked, [(len(marked), True)])
        _check_kept(marked, text)
        return self.encode([text])[0]

    def turns(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[list[int]]:
        """Encode a conversation up to the end of its last answer, as prompts and answers in turn.

        An answer begins where the prompt before it ends, and ends with the last special token before the next message;
        what the template writes after that is nothing that the model has to say. Errors as `prompt`.
        """
        marked, named = self._messages(messages), self._marked(tools)
        answers = [number for number, one in enumerate(marked) if one.get("role") == "assistant"]
        marked = marked[: answers[-1] + 1]
        cuts = [cut for number in answers for cut in ((number, True), (number + 1, False))]
        texts = self.renderer.render(marked, cuts, named)
        for (number, _), text in zip(cuts, texts, strict=True):
            if not texts[-1].startswith(text):
                raise ChatTemplateError(
                    f"the chat template does not keep what it writes: the text of the first {number} messages is not "
                    "the beginning of the text of all; give a template that only appends"
                )
        _check_kept(marked, texts[-1], named or ())
        *parts, whole = self.encode(texts)
        found, begin, reached = list[list[int]](), 0, 0
        for number, cut in enumerate((*(_common(part, whole) for part in parts), len(whole))):
            end = reached = max(reached, cut)
            if number % 2:  # what follows the last special token of an answer is part of the next prompt
                places = (place for place in range(begin, end) if whole[place] in self._special_ids)
                end = max(places, default=end - 1) + 1
            found.append(whole[begin:end])
            begin = end
        return found

    @functools.cached_property
    def end(self) -> int | None:
        """Special token that ends an answer; None if the template writes none, or takes no plain conversation."""
        marked = self._messages(PROBE)
        try:
            [text] = self.renderer.render(marked, [(len(marked), False)])
        except (ChatTemplateError, RunError):
            return None
        _, answer, after = text.rpartition(marked[-1]["content"])  # before it may stand more than in the prompt
        ids = self.encode([after])[0] if answer else []
        return next((number for number in reversed(ids) if number in self._special_ids), None)

    def check(self) -> None:
        """Check that a model can learn to answer by the template.

        Raises:
            ChatTemplateError: the template rewrites the beginning of a conversation, or ends no answer; or as `prompt`.
            RunError: as `prompt`.
        """
        if self.turns(PROBE)[-1][-1] not in self._special_ids:
            raise ChatTemplateError(
                "the chat template ends an answer with no special token of the tokenizer, so that a model would never "
                "stop; write eos_token after the answer"
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts that the template has written: special tokens by their names, except in messages.

        Raises:
            UserError: a text contains a lone surrogate, or the tokenizer fails.
        """
        if not any(OPEN in text or CLOSE in text for text in texts):
            return self._encode(texts)
        return [self._encode_marked(text) for text in texts]

    def _encode_marked(self, text: str) -> list[int]:
        """Encode a text with special tokens of messages, each of which is a text of its own."""
        parts = MARKED.split(text)
        encoders = (self._encode, lambda one: encode_ordinary(self.tokenizer, one))
        return [one for number, part in enumerate(parts) if part for one in encoders[number % 2]([part])[0]]

    def _messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Mark the special tokens in messages; keys without a value are left out, as transformers does."""
        return [{key: self._marked(one) for key, one in message.items() if one is not None} for message in messages]

    def _marked(self, value: Any) -> Any:
        """Mark the special tokens in the strings of a value."""
        if isinstance(value, str):
            if not self._names.search(value):
                return value
            return self._names.sub(lambda found: f"{OPEN}{found[0]}{CLOSE}", MARKED.sub(r"\1", value))
        if isinstance(value, dict):
            return {key: self._marked(one) for key, one in value.items()}
        return [self._marked(one) for one in value] if isinstance(value, list | tuple) else value

    def close(self) -> None:
        """End the process that renders the template."""
        self.renderer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_chat(folder: Path, tokenizer: Tokenizer, *, needed: bool = False) -> Chat | None:
    """Open the chat template of a model folder; None if it has none.

    Raises:
        UserError: a file is damaged, or there is no template and it is `needed`.
    """
    template = read_chat_template(folder, tokenizer)
    if template is None and needed:
        raise UserError(f"{folder} has {NO_TEMPLATE}")
    return None if template is None else Chat(template, tokenizer)


def without_first_turn(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation without its first question and answer, but with its system message; empty if none is left.

    What the assistant called a tool for is of one turn with the tool's answer.
    """
    first = next((number for number, one in enumerate(messages) if one["role"] != "system"), len(messages))
    for number in range(first + 1, len(messages)):
        if messages[number - 1]["role"] == "assistant" and messages[number]["role"] != "tool":
            return [*messages[:first], *messages[number:]]
    return []


def with_text(message: Message) -> Message:
    """Message with one text in place of a list of its parts, `[{"type": "text", "text": …}, …]`, as the server has it.

    Other parts, such as images, are left to the template.
    """
    parts = message.get("content")
    if not isinstance(parts, list) or not parts:
        return message
    texts = [one.get("text") if isinstance(one, dict) and one.get("type") == "text" else None for one in parts]
    if not all(isinstance(text, str) for text in texts):
        return message
    return {**message, "content": "".join(str(text) for text in texts)}


def special_tokens(tokenizer: Tokenizer, named: Iterable[str]) -> dict[str, int]:
    """Return the special tokens by their names: those of the tokenizer, and named ones, as in transformers."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        found = tokenizer.special
    else:
        assert isinstance(tokenizer, tokenizers.Tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        found = {token.content: number for number, token in added.items() if token.special}
    ids = {name: tokenizer.token_to_id(name) for name in named}
    return found | {name: number for name, number in ids.items() if number is not None}


def special_encoder(tokenizer: Tokenizer, special: Mapping[str, int]) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return an encoder that finds special tokens in a text by their names, and puts nothing before a text."""
    other: Tokenizer
    if isinstance(tokenizer, SentencePieceTokenizer):
        beside = [one for one in tokenizer.added.values() if one.content not in special]
        added = [*beside, *(Added(name, number, "", special=False) for name, number in special.items())]
        other = SentencePieceTokenizer(tokenizer.model, "", added=added, spaces_each=tokenizer.spaces_each)
    else:
        assert isinstance(tokenizer, tokenizers.Tokenizer)
        # The flag against special tokens is not stored, so that it is off in a copy, and no other thread sets it.
        other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        known = {token.content for token in other.get_added_tokens_decoder().values()}
        other.add_special_tokens([AddedToken(name, normalized=False) for name in special if name not in known])
    return functools.partial(encode_ordinary, other, named=True)


def _common(part: Sequence[int], whole: Sequence[int]) -> int:
    """Return the number of ids with which both begin: a token across the end of a part belongs to what follows."""
    same = (number for number, (one, other) in enumerate(zip(part, whole, strict=False)) if one != other)
    return next(same, min(len(part), len(whole)))


def _check_kept(messages: Sequence[Message], text: str, tools: Sequence[Any] = ()) -> None:
    """Check that a text has what was said to the assistant, and the names of tools, as they are or as JSON.

    Raises:
        ChatTemplateError: a message or a tool is left out.
    """
    said = [(f"the message {number} of the role {one.get('role')}", one.get("content"))
            for number, one in enumerate(messages) if one.get("role") != "assistant"]  # fmt: skip
    calls = [call for one in messages for call in one.get("tool_calls") or ()]
    said += [("a tool", one.get("function", one).get("name")) for one in (*tools, *calls) if isinstance(one, dict)]
    for what, content in said:
        if isinstance(content, str) and not any(
            form in text for form in (content.strip(), json.dumps(content.strip(), ensure_ascii=False)[1:-1])
        ):
            raise ChatTemplateError(f"the chat template leaves out {what}; leave it out too, or give another template")
