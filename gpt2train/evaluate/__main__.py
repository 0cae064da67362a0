"""Evaluate with several processes: `torchrun --nproc-per-node 4 -m gpt2train.evaluate lambada --model M --data F`."""

from gpt2train.evaluate.command import evaluate
from gpt2train.evaluate.processes import run_shared

if __name__ == "__main__":
    run_shared(evaluate)
