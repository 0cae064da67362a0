"""A small model behind the real server, over loopback, in a thread of the test's process."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from gpt2train.data.chat import Chat
from gpt2train.data.chat_template import default_template
from gpt2train.data.tokenizer import END_OF_TEXT, build_tokenizer, save_tokenizer
from gpt2train.inference.decoder import Decoder, LocalDecoder
from gpt2train.model.gpt2 import GPT2
from gpt2train.model.shape import Shape
from gpt2train.serve.server import Server, prepare
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.models import lively

SHAPE = Shape(vocab=257, layers=2, heads=2, hidden=32, context=128)
LETTERS = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))} | {END_OF_TEXT: 256}


def small_model(seed: int = 3) -> GPT2:
    """A small model whose weights are large enough for varied continuations."""
    model = lively(SHAPE, seed, 0.1)
    # `<|endoftext|>` is never drawn, or one test in a hundred would end early: its logit is about -40.
    model.ln_f.bias[0] = 20
    model.wte.weight[:, 0] = 0
    model.wte.weight[256] = 0
    model.wte.weight[256, 0] = -2
    return model


def tokenizer() -> Tokenizer:
    """A token for each byte."""
    return build_tokenizer(LETTERS, [])


def small_chat() -> Chat:
    """Conversations by the default template: a line for a message, and `<|endoftext|>` after an answer."""
    return Chat(default_template(tokenizer(), "\n"), tokenizer())


def write_tokenizer(folder: Path) -> Path:
    save_tokenizer(folder, LETTERS, [])
    return folder


class Gate:
    """A decoder that waits for permission before each step; `rows_seen` are the rows of each step."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.shape, self.rows, self.context = decoder, decoder.shape, decoder.rows, decoder.context
        self.allowed = threading.Semaphore(0)
        self.rows_seen: list[int] = []
        self.failure: Exception | None = None

    @property
    def lengths(self) -> Sequence[int]:
        return self.decoder.lengths

    def allow(self, steps: int) -> None:
        self.allowed.release(steps)

    def add(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        return self.decoder.add(prompts)

    def step(self, tokens: Sequence[int]) -> Tensor:
        assert self.allowed.acquire(timeout=60), "the decoder was not allowed to step"
        if self.failure:
            raise self.failure
        self.rows_seen.append(len(tokens))
        return self.decoder.step(tokens)

    def select(self, sources: Sequence[int]) -> None:
        self.decoder.select(sources)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        return self.decoder.logits(tokens)


@dataclass(frozen=True)
class Running:
    server: Server
    client: httpx.Client
    thread: threading.Thread

    @property
    def url(self) -> str:
        return self.server.address


@contextlib.contextmanager
def running(
    decoder: Decoder | None = None,
    settings: ServeSettings | None = None,
    words: Tokenizer | None = None,
    trace: Path | None = None,
    chat: Chat | None = None,
) -> Iterator[Running]:
    """Serve a decoder at a free port until the end of the block."""
    settings = (settings or ServeSettings()).model_copy(update={"port": 0})
    decoder = decoder or LocalDecoder(small_model(), settings.max_batch_size)
    server = prepare(decoder, words or tokenizer(), settings, "small", trace, chat=chat)
    failure: list[BaseException] = []

    def run() -> None:
        try:
            server.run()
        except Exception as error:  # noqa: BLE001 - a test checks it
            failure.append(error)

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        with httpx.Client(base_url=server.address, timeout=60, trust_env=False) as client:
            yield Running(server, client, thread)
    finally:
        server.http.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
