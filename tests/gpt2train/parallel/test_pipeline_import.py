"""The import of torch's pipelining, which costs half a second: only where there is a pipeline."""

import subprocess
import sys

import pytest


@pytest.mark.exhaustive
def test_a_training_without_a_pipeline_does_not_import_it() -> None:
    program = "import sys, gpt2train.train; print('torch.distributed.pipelining' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
