"""Chat templates of model folders: found, copied, and rendered by a child process (`gpt2train.data.chat_worker`).

| file | what of it |
|---|---|
| `chat_template.jinja` | the template |
| `tokenizer_config.json`, `chat_template` | the template, in older folders; of several the one named `default` |
| `tokenizer_config.json`, `special_tokens_map.json` | tokens that a template names, such as `eos_token` |
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2train.data.added_tokens import CONFIG, NAMED, SPECIAL_MAP
from gpt2train.data.template import prefix_ids, start_ids
from gpt2train.data.tokenizer import Tokenizer, end_token, load_tokenizer
from gpt2train.errors import RunError, UserError

FILE = "chat_template.jinja"
WORKER = Path(__file__).with_name("chat_worker.py")
SECONDS = 2.0  # of processor time for a conversation; one of 100 turns takes a hundredth of it
NO_TEMPLATE = (
    f"no chat template ({FILE}, or chat_template in {CONFIG}); fine-tune the model on conversations: "
    "docs/guides/chat.md"
)
Message = Mapping[str, Any]


class ChatTemplateError(UserError):
    """A template that refuses a conversation, or does not keep what a conversation says."""


@dataclass(frozen=True)
class ChatTemplate:
    """Template of a model, and the tokens that it names."""

    text: str
    tokens: Mapping[str, str]  # tokens by their names: `bos_token`, `eos_token`, …


def template_text(folder: Path) -> str | None:
    """Return the text of a folder's template; None if it has none.

    Raises:
        UserError: a file is damaged.
    """
    try:
        if (folder / FILE).is_file():
            return (folder / FILE).read_text(encoding="utf-8")
        found = _object(folder / CONFIG).get("chat_template")
        if isinstance(found, list):
            found = {one["name"]: one["template"] for one in found}.get("default")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"cannot read the chat template of {folder}: {error}; copy the folder again") from error
    return found if isinstance(found, str) else None


def read_chat_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Read the template of a folder, with the special tokens of its tokenizer; None if there is none.

    Raises:
        UserError: a file is damaged.
    """
    if not folder.is_dir() or (text := template_text(folder)) is None:
        return None
    stated: dict[str, Any] = {}
    for name in (SPECIAL_MAP, CONFIG):
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            stated |= _object(folder / name).items()
    named = _first_and_last(tokenizer)
    for name in NAMED:
        if name in stated:
            value = stated[name]
            named[name] = value.get("content") if isinstance(value, dict) else value
    known = {name: token for name, token in named.items() if isinstance(token, str)}
    return ChatTemplate(
        text, {name: token for name, token in known.items() if tokenizer.token_to_id(token) is not None}
    )


def default_template(tokenizer: Tokenizer, prompt_end: str) -> ChatTemplate:
    """Return the template of a model that has none: `prompt_end` after each turn, the end of a text after an answer."""
    end = json.dumps(prompt_end, ensure_ascii=False)
    start = "{{ bos_token }}" if prefix_ids(tokenizer) else ""
    text = (
        start + "{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% elif message['role'] in ('user', 'system') %}{{ message['content'] + " + end + " }}"
        "{% else %}{{ raise_exception('a message is of the user, the assistant or the system') }}{% endif %}"
        "{% endfor %}"
    )
    return ChatTemplate(text, {name: str(token) for name, token in _first_and_last(tokenizer).items()})


def _first_and_last(tokenizer: Tokenizer) -> dict[str, str | None]:
    """Return the tokens that begin and end a text, by their names in templates."""
    return {"bos_token": tokenizer.id_to_token(start_ids(tokenizer)[0]), "eos_token": end_token(tokenizer)}


def chat_files(template: ChatTemplate) -> dict[str, bytes]:
    """Return the files of a template beside a tokenizer; a first token that it does not have is null."""
    tokens = json.dumps({"bos_token": None, **template.tokens}, ensure_ascii=False, indent=2, sort_keys=True)
    return {FILE: template.text.encode(), SPECIAL_MAP: f"{tokens}\n".encode()}


def copy_chat_template(source: Path, folder: Path) -> None:
    """Copy the template of a folder, if it has one, to a folder that has the tokenizer already."""
    if source.is_dir() and template_text(source) is not None:
        template = read_chat_template(source, load_tokenizer(folder))
        for name, content in chat_files(template).items() if template else ():
            (folder / name).write_bytes(content)


class ChatRenderer:
    """Child process that renders one template; it is started when it is needed, and again if it has ended.

    `date` is the date and time that the template writes, in ISO 8601; None: now.
    """

    def __init__(self, template: ChatTemplate, date: str | None = None) -> None:
        self.template, self.date = template, date
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(
        self, messages: Sequence[Message], cuts: Sequence[tuple[int, bool]], tools: Sequence[Any] | None = None
    ) -> list[str]:
        """Render beginnings of a conversation.

        Args:
            messages: the conversation.
            cuts: number of messages of each beginning, and True to begin the answer after them.
            tools: tools that the assistant may call.

        Raises:
            ChatTemplateError: the template is wrong, or refuses the conversation.
            RunError: it takes too much time or memory.
        """
        request: dict[str, Any] = {"template": self.template.text, "tokens": dict(self.template.tokens)}
        request |= {"date": self.date, "messages": list(messages), "cuts": list(cuts), "tools": tools}
        with self._lock:
            answer = json.loads(self._ask(json.dumps(request, default=str).encode() + b"\n"))
        if "error" in answer:
            raise ChatTemplateError(f"the chat template cannot be applied: {answer['error']}")
        return list(answer["texts"])

    def _ask(self, line: bytes) -> bytes:
        if self._child is None or self._child.poll() is not None:
            command, pipe = [sys.executable, "-P", str(WORKER), str(SECONDS)], subprocess.PIPE
            self._child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
            )  # not in the terminal's group: Ctrl-C ends an answer, not this process
        assert self._child.stdin is not None and self._child.stdout is not None
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(line)
            self._child.stdin.flush()
            answer = self._child.stdout.readline()
        if not answer.endswith(b"\n"):
            late = self._end() == -getattr(signal, "SIGPROF", 0)
            what = f"over {SECONDS:g} s of processor time" if late else "too much memory or nesting"
            raise RunError(f"the chat template takes {what}; correct {FILE} in the model's folder")
        return answer

    def _end(self) -> int:
        """Wait for the end of the child."""
        child, self._child = self._child, None
        assert child is not None and child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        code = child.wait()
        child.stdout.close()
        return code

    def close(self) -> None:
        """End the child process."""
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._end()


def _object(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_bytes()) if file.is_file() else {}
    return dict(found.items())
