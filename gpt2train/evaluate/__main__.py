"""Entry point under torchrun: `torchrun --nproc-per-node 4 -m gpt2train.evaluate lambada --model M --data F`."""

import sys

from gpt2train.cli import app
from gpt2train.evaluate.torchrun import run_shared

if __name__ == "__main__":
    sys.argv.insert(1, "evaluate")
    run_shared(app)
