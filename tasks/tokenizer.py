"""The tokenizer of a run: trained on its own documents, or GPT-2's as published.

Writes `tokenizer/{vocab.json,merges.txt,tokenizer.json}`: a folder that `transformers` and `gpt2train` load alike.
"""

import hashlib
import http.client
import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gpt2train.data.tokenizer import (
    END_OF_TEXT,
    FILES,
    MERGES,
    TOKENIZER,
    VOCAB,
    build_tokenizer,
    parse_tables,
    tokenizer_files,
)
from gpt2train.errors import UserError
from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import read_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

PUBLISHED_AT = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
# Our name -> (the name OpenAI gave it, SHA-256 of the file).
PUBLISHED = {
    VOCAB: ("encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    MERGES: ("vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
}
TIMEOUT = 30.0  # seconds without a byte; the two files are 1.5 MB together
MOST_BYTES = 1 << 24  # of a downloaded file
LONGEST = 256  # characters of a word (or gap) that training looks at
LONG_RUN = re.compile(rf"\S{{{LONGEST},}}|\s{{{LONGEST},}}")
BYTES = 256  # tokens that every byte-level vocabulary begins with


class TokenizerSettings(Settings):
    """Which tokenizer a run uses."""

    name: Literal["train", "gpt2"] = "train"
    """`train`: a byte-level BPE trained on the train split. `gpt2`: the published 50,257 tokens."""
    vocab_size: int = Field(default=4096, ge=BYTES + 1, le=2**20)
    """Tokens of a trained vocabulary, `<|endoftext|>` included; fewer where there are no more pairs to merge."""
    min_frequency: int = Field(default=2, ge=1)
    """A pair is merged only if it occurs this often."""
    sample_characters: int = Field(default=200_000_000, ge=1)
    """Training stops reading documents after so many characters (in the order of the shards)."""
    folder: str | None = None
    """For `gpt2`: a folder or URL with vocab.json and merges.txt; downloaded where not given."""


def tokenizer(root: Folder, documents: Manifest | None, settings: TokenizerSettings, runner: Runner) -> Manifest:
    """Make the tokenizer folder of a run.

    Raises:
        UserError: no document to train on; or the published files cannot be had, or are not what they should be.
    """
    if settings.name == "gpt2":
        # The files are checked by hash, so it does not matter where they came from.
        hashes = {name: digest for name, (_, digest) in PUBLISHED.items()}
        step = Step(root, "tokenizer", version=1, parameters={"name": "gpt2"}, inputs=hashes, packages=("tokenizers",))
        if done := runner.finished(step):
            return done
        return step.commit(Outcome.total(runner.batches(step, "fetch", [settings.folder], fetch, where="thread")))
    if documents is None:
        raise UserError(
            "tokenizer.name = 'train' needs documents to train on; give them, or take tokenizer.name = 'gpt2'"
        )
    parameters = settings.model_dump(mode="json", exclude={"folder"})
    inputs = {"documents": documents}
    step = Step(root, "tokenizer", version=1, parameters=parameters, inputs=inputs, packages=("tokenizers",))
    if done := runner.finished(step):
        return done
    shards = [tuple(record.name for record in documents.outputs)]
    return step.commit(
        Outcome.total(runner.batches(step, "train", shards, train_on, root / documents.folder, settings))
    )


def train_on(folder: Folder, name: str, shards: Sequence[str], source: Folder, settings: TokenizerSettings) -> Outcome:
    """Train on the train split of these shards. One batch: training cannot be cut."""
    counts = {"documents": 0, "characters": 0}

    def texts() -> Iterator[str]:
        for shard in shards:
            table = read_table(source, shard, columns=["text", "split"])
            for text, split in zip(table["text"], table["split"].to_pylist(), strict=True):
                if split == "train" and counts["characters"] < settings.sample_characters:
                    plain = text.as_py()
                    counts["documents"] += 1
                    counts["characters"] += len(plain)
                    yield plain

    vocab, merges = train_bpe(texts(), settings.vocab_size, settings.min_frequency)
    if not counts["characters"]:
        raise UserError(
            f"no document of the train split in {source.url} to train a tokenizer on; give more pages,"
            " or take tokenizer.name = 'gpt2'"
        )
    return _commit(folder, tokenizer_files(vocab, merges), {**counts, "vocab_size": len(vocab)})


def train_bpe(
    texts: Iterator[str], vocab_size: int, min_frequency: int = 2
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a byte-level BPE as GPT-2's: 256 bytes first, merges by frequency, `<|endoftext|>` last.

    The result depends on the texts alone: ties between pairs are broken by their ids, and the ids of the bytes are
    sorted. (Neither threads nor hash seeds show: `tests/tasks/test_tokenizer.py` runs it under several of both.)

    Returns:
        vocabulary (token -> id) and merges, best first.
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
    """Cut runs without a space, and runs of spaces, to 256 characters.

    For training only. Its time grows with the square of a word's length: a word of 2 MB took more than ten minutes.
    """
    return LONG_RUN.sub(lambda found: found[0][:LONGEST], text)


def fetch(folder: Folder, name: str, source: str | None) -> Outcome:
    """Take the published files from a folder, or download them; refuse what is not GPT-2's, byte for byte."""
    content = {}
    for ours, (theirs, digest) in PUBLISHED.items():
        data, place = _read_from(Folder(source), ours, theirs) if source else _download(f"{PUBLISHED_AT}/{theirs}")
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise UserError(
                f"{place} is not GPT-2's published {ours} (SHA-256 {found[:12]}…, {digest[:12]}… expected);"
                " give tokenizer.folder with the right files, or take tokenizer.name = 'train'"
            )
        content[ours] = data
    vocab, merges = parse_tables(content[VOCAB].decode(), content[MERGES].decode())
    content[TOKENIZER] = build_tokenizer(vocab, merges).to_str(pretty=False).encode()
    return _commit(folder, content, {"vocab_size": len(vocab)})


def _commit(folder: Folder, content: dict[str, bytes], facts: dict[str, int]) -> Outcome:
    for name in FILES:
        folder.write_bytes(name, content[name])
    return Outcome(outputs=tuple(folder.record(name) for name in FILES), facts=facts)


def _read_from(folder: Folder, *names: str) -> tuple[bytes, str]:
    """The first of these files that is there, and where it is."""
    for name in names:
        try:
            return folder.read_bytes(name), f"{folder.url}/{name}"
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"cannot read {folder.url}/{name}: {error.strerror or error}; check the file") from error
    raise UserError(f"{folder.url} holds neither {' nor '.join(names)}; give tokenizer.folder with GPT-2's files")


def _download(url: str) -> tuple[bytes, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as reply:
            return reply.read(MOST_BYTES), url
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"cannot download {url}: {reason}; give tokenizer.folder with vocab.json and merges.txt,"
            " or take tokenizer.name = 'train'"
        ) from error
