"""Multiplications of an evaluation task: the harness, ours, and the least of any exact method; nothing is computed.

`python -m benchmarks.task_products TOKENIZER DATA [--items 12] [--tasks hellaswag blimp]`

TOKENIZER is the folder of GPT-2's vocabulary, DATA as for `benchmarks.evaluate_tasks`. Products of weights alone, at
124M: attention between tokens is a hundredth of them. The harness computes all blocks and the logits for each token of
a batch of 16 requests, padding included, and one-token choices after the same input once. The least: each beginning
of any two requests once, without padding, the logits and the last block's query, output and MLP where a token is
scored alone. Ours is the least, but with the trees that `token_tree` builds, their padding, and the last block's query
and output everywhere.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.evaluate.scoring_request import BATCH_TOKENS, ScoringRequest
from gpt2train.evaluate.tasks.description import ready_files
from gpt2train.evaluate.tasks.scores import plan_task
from gpt2train.evaluate.tasks.suite import read_work
from gpt2train.evaluate.token_tree import build_trees, tree_batches

HIDDEN, LAYERS, VOCABULARY, CONTEXT = 768, 12, 50_257, 1024
PROJECTION = HIDDEN * HIDDEN
KEY_VALUE, QUERY_OUTPUT, MLP = 2 * PROJECTION, 2 * PROJECTION, 8 * PROJECTION
BLOCK, LOGITS = KEY_VALUE + QUERY_OUTPUT + MLP, HIDDEN * VOCABULARY
BATCH = 16  # requests of the harness


def harness_products(requests: Sequence[ScoringRequest]) -> int:
    """Products of the harness: distinct inputs, the longest first, padded to the longest of their batch."""
    lengths = sorted((len(tokens) for tokens in {tuple(request.tokens[:-1]) for request in requests}), reverse=True)
    padded = sum(lengths[start] * len(lengths[start : start + BATCH]) for start in range(0, len(lengths), BATCH))
    return padded * (LAYERS * BLOCK + LOGITS)


def least_products(requests: Sequence[ScoringRequest]) -> int:
    """Products that no exact method can leave out."""
    nodes, scored = set(), set()
    for request in requests:
        inputs = tuple(request.tokens[:-1])
        nodes |= {inputs[:end] for end in range(1, len(inputs) + 1)}
        scored |= {inputs[:end] for end in range(len(inputs) - request.scored + 1, len(inputs) + 1)}
    return len(nodes) * ((LAYERS - 1) * BLOCK + KEY_VALUE) + len(scored) * (QUERY_OUTPUT + MLP + LOGITS)


def own_products(requests: Sequence[ScoringRequest]) -> int:
    """Products of `score_shared`."""
    trees = build_trees(requests, HIDDEN, BATCH_TOKENS)
    padded = scored = 0
    for batch in tree_batches(trees, HIDDEN, BATCH_TOKENS):
        padded += len(batch) * max(sum(len(trees[index]) for index in row) for row in batch)
        scored += sum(len({node for nodes in trees[index].nodes for node in nodes}) for row in batch for index in row)
    return padded * (LAYERS * BLOCK - MLP) + scored * (MLP + LOGITS)


def main() -> None:
    """Print a line per task: 10^9 products of each, and the ratios of the harness over ours and over the least."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--items", type=int, default=12)
    parser.add_argument("--tasks", nargs="+", default=["commonsense_qa", "hellaswag", "blimp"])
    given = parser.parse_args()
    tokenizer = load_tokenizer(given.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.tasks:
            lines = (given.data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[: given.items]
            data = Path(folder) / f"{name}.jsonl"
            data.write_text("".join(lines), encoding="utf-8")
            [part] = read_work(str(ready_files()[name]), data).parts
            requests = plan_task(part.task, part.name, part.items, tokenizer, CONTEXT).requests
            harness, own, least = (count(requests) for count in (harness_products, own_products, least_products))
            found = {"harness": round(harness / 1e9, 1), "own": round(own / 1e9, 1), "least": round(least / 1e9, 1)}
            ratios = {"harness/own": round(harness / own, 2), "harness/least": round(harness / least, 2)}
            print(json.dumps({"task": name, **found, **ratios}))


if __name__ == "__main__":
    main()
