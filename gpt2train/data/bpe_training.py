"""Training of a byte-level BPE like that of GPT-2."""

import json
import re
from collections.abc import Iterator

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gpt2train.data.tokenizer import END_OF_TEXT

MAX_RUN = 256  # characters of a word (or of white space) used in training
LONG_RUN = re.compile(rf"\S{{{MAX_RUN},}}|\s{{{MAX_RUN},}}")


def train_bpe(
    texts: Iterator[str], vocab_size: int, min_frequency: int = 2
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a byte-level BPE like that of GPT-2: 256 bytes first, merges by frequency, `<|endoftext|>` last.

    The result depends on the texts alone: ties between pairs are broken by their ids, and the ids of the bytes are
    sorted. `tests/tasks/tokenizer/test_step.py` runs it with several numbers of threads and hash seeds.

    Args:
        texts: training texts.
        vocab_size: maximum tokens including `<|endoftext|>`.
        min_frequency: minimum occurrences of a pair to be merged.

    Returns:
        Vocabulary (token -> id), and merges in order.
    """
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.encode_special_tokens = True
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bare.train_from_iterator(map(cut_runs, texts), trainer)
    model = json.loads(bare.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    vocab[END_OF_TEXT] = len(vocab)
    return vocab, [(left, right) for left, right in model["merges"]]


def cut_runs(text: str) -> str:
    """Cut runs without white space, and runs of white space, to 256 characters, for training only.

    The training time is quadratic in the length of a word: a word of 2 MB took more than ten minutes.
    """
    return LONG_RUN.sub(lambda found: found[0][:MAX_RUN], text)
