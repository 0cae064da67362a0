"""Megatron-LM's counts of samples, to compare a run with one of Megatron-LM.

One rule of gpt2train differs on purpose. Megatron-LM concatenates all epochs of a run to one stream whose documents are
shuffled jointly, so a document may repeat before others were seen, and the order depends on the length of the run; here
epochs are independent, and the tail of each (below one sample) is dropped: 177 epochs of 452 samples are 80,004
samples, and the joint stream has 80,118.
(Megatron-LM, `megatron/data/gpt_dataset.py` of 2023.)
"""

from dataclasses import dataclass

from gpt2train.data.epoch import samples_in

SEPARATE = 0.80  # the last epoch is shuffled separately if a smaller fraction of it is used


@dataclass(frozen=True)
class JoinedEpochs:
    """Sample counts of a run whose epochs form one stream.

    Attributes:
        epochs: smallest number of epochs with the requested samples.
        samples: samples of the whole stream.
        per_epoch: samples of a single epoch.
        main: samples of all epochs but the last.
        last: samples taken from the last epoch.
        separate: True if the last epoch is shuffled separately.
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
        tokens: tokens per epoch.
        context: inputs per sample.
        samples: requested number of samples, at least 1.
    """
    epochs = -(-(samples * context + 1) // tokens)
    main, per_epoch = samples_in((epochs - 1) * tokens, context), samples_in(tokens, context)
    last = samples - main
    separate = epochs > 1 and last < int(SEPARATE * per_epoch)
    return JoinedEpochs(epochs, samples_in(epochs * tokens, context), per_epoch, main, last, separate)
