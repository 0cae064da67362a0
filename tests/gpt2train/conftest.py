"""Fixtures of the engine's tests: small token files, and a process group of one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gpt2train.parallel.mesh import DistContext, join
from tests.gpt2train.jobs import write_tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def alone() -> Iterator[DistContext]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield join("cpu")
    dist.destroy_process_group()
    torch.set_num_threads(threads)
