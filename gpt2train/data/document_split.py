"""Split of a token dataset by documents: consecutive ranges for training, validation and test, by Megatron-LM's rule.

A document can move to another part when documents are added, since the bounds are fractions of their number. The data
flow splits by a hash of each document instead (`tasks/clean/splits.py`). This rule is for token files made elsewhere,
and for comparisons with a run of Megatron-LM.
"""

import itertools
from collections.abc import Sequence
from typing import Literal

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")


def split_documents(documents: int, weights: Sequence[float]) -> list[range]:
    """Documents of each part of a `--split` such as `949,50,1`: consecutive, in order, and all of them.

    Each part is rounded on its own, and the first one absorbs the difference (`get_train_valid_test_split_` in
    `megatron/data/dataset_utils.py`). Where that would make the first part negative, Megatron-LM reads documents from
    the end of the file; here the part is empty, and the next ones absorb the rest.

    Args:
        documents: number of documents.
        weights: weights of the parts, not all 0; only their ratios matter.
    """
    bounds, whole = [0], sum(weights)
    for weight in weights:
        bounds.append(bounds[-1] + round(weight / whole * documents))
    excess = bounds[-1] - documents
    bounds[1:] = [max(0, bound - excess) for bound in bounds[1:]]
    return [range(start, end) for start, end in itertools.pairwise(bounds)]
