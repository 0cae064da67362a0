"""Servers of small models, one for each file of tests."""

from collections.abc import Iterator

import pytest

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.decoder import LocalDecoder
from tests.gpt2train.serve.fixed_text_model import write_reciting_model
from tests.gpt2train.serve.local_server import Running, running, small_chat


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture(scope="module")
def reciting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that answers "Hello" with "I hear you." and an end."""
    folder = tmp_path_factory.mktemp("reciting") / "small"
    write_reciting_model(folder, "Hello\nI hear you.\0", end="\0")
    with running(LocalDecoder(read_model(folder), 4), words=load_tokenizer(folder), chat=small_chat()) as one:
        yield one
