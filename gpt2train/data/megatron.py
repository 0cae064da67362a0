"""How Megatron-LM counts documents and samples, to compare a run with one of its own.

Two rules differ here on purpose. Its split cuts the list of documents at fractions of its length, so a document moves
from test to train when others are added; here a hash of its content decides. It joins all epochs of a run to one
stream whose documents are shuffled jointly, so a document may come back before others were seen once, and the order
depends on how long the run is; here every epoch stands alone, and the tail of each (below one sample) is left out: 452
samples an epoch for 177 epochs are 80,004 where the joined stream gives 80,118.
(Megatron-LM, `megatron/data/gpt_dataset.py` and `dataset_utils.py` of 2023.)
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2train.data.epoch import samples_in

SEPARATE = 0.80  # a last epoch of which less is used is shuffled apart


def split_documents(documents: int, fractions: Sequence[float]) -> list[int]:
    """Documents of each part of a `--split`, as `700,200,100`: rounded one by one, the difference taken from the first.

    Args:
        fractions: of train, validation, test; only their ratios count.
    """
    bounds, whole = [0], sum(fractions)
    for fraction in fractions:
        bounds.append(bounds[-1] + round(fraction / whole * documents))
    excess = bounds[-1] - documents
    bounds[1:] = [bound - excess for bound in bounds[1:]]
    return [end - start for start, end in itertools.pairwise(bounds)]


@dataclass(frozen=True)
class JoinedEpochs:
    """The samples of a run whose epochs are one stream.

    Attributes:
        epochs: as few as give the samples asked for.
        samples: of the whole stream.
        per_epoch: of one epoch alone.
        main: of all epochs but the last.
        last: taken from the last epoch.
        separate: whether the last epoch is shuffled apart.
    """

    epochs: int
    samples: int
    per_epoch: int
    main: int
    last: int
    separate: bool


def join_epochs(tokens: int, context: int, samples: int) -> JoinedEpochs:
    """Count the epochs and samples of a run.

    Args:
        tokens: of one epoch.
        context: inputs of a sample.
        samples: asked for, 1 or more.
    """
    epochs = -(-(samples * context + 1) // tokens)
    main, per_epoch = samples_in((epochs - 1) * tokens, context), samples_in(tokens, context)
    last = samples - main
    separate = epochs > 1 and last < int(SEPARATE * per_epoch)
    return JoinedEpochs(epochs, samples_in(epochs * tokens, context), per_epoch, main, last, separate)
