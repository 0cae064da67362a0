"""What the tests of training jobs share."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from gpt2train.parallel.mesh import Place, join


@pytest.fixture(scope="module")
def alone() -> Iterator[Place]:
    """A process group of this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield join("cpu")
    dist.destroy_process_group()
    torch.set_num_threads(threads)
