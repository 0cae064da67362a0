"""Tokenizer of a run: trained on its documents, the published one of GPT-2, or the user's own.

Writes `tokenizer/{vocab.json,merges.txt,tokenizer.json}`, a folder that both `transformers` and `gpt2train` load; for a
tokenizer of another kind than GPT-2's its `tokenizer.json` or `tokenizer.model`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from gpt2train.data.bpe_training import train_bpe
from gpt2train.data.published_gpt2 import PUBLISHED, published_files
from gpt2train.data.sentencepiece_model import MODEL
from gpt2train.data.tokenizer import (
    MERGES,
    PADDING_TOKENS,
    VOCAB,
    canonical_files,
    open_tokenizer,
    parse_tables,
    tokenizer_files,
    vocab_size,
)
from gpt2train.data.tokenizer_reader import collect_files, read_files
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.hub import HUB, TOKENIZER_FILES, local_copy
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.runner import Runner, Where
from tasks.core.shards import read_table
from tasks.core.step import Step
from tasks.tokenizer.settings import TokenizerSettings

REMEDY = (
    "give tokenizer.folder with the published vocab.json and merges.txt; "
    "for your own files set tokenizer.name = 'folder'"
)


def tokenizer(root: Folder, documents: Manifest | None, settings: TokenizerSettings, runner: Runner) -> Manifest:
    """Write the tokenizer folder of a run; `documents` are those to train on, None for one that is not trained.

    Raises:
        UserError: there is no document to train on; or the files cannot be read or downloaded, or are invalid.
    """
    inputs: dict[str, Any]
    parameters: dict[str, Any] = {"name": settings.name}
    library = "tokenizers"
    if settings.name == "folder":
        content, _ = own_files(settings)
        inputs = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
        library = "sentencepiece" if MODEL in content else "tokenizers"
        batches: tuple[Any, ...] = ("read", [settings], read_own)
    elif settings.name == "gpt2":
        # The files are checked by hash, so their source is no input.
        inputs = {name: digest for name, (_, digest) in PUBLISHED.items()}
        parameters |= {"sentinels": settings.sentinels} if settings.sentinels else {}
        batches = ("fetch", [settings], fetch)
    elif documents is None:
        raise UserError(
            "tokenizer.name = 'train' needs documents to train on; give documents, or set tokenizer.name = 'gpt2'"
        )
    else:
        inputs, is_bpe = {"documents": documents}, settings.algorithm == "byte_bpe"
        parameters = settings.model_dump(mode="json", exclude={"folder", *(("algorithm",) if is_bpe else ())})
        library = "tokenizers" if is_bpe else "sentencepiece"
        shards = tuple(record.name for record in documents.outputs)
        batches = ("train", [shards], train_on, root / documents.folder, settings)
    step = Step(root, "tokenizer", version=1, parameters=parameters, inputs=inputs, packages=(library,))
    if done := runner.finished(step):
        return done
    where: Where = "process" if settings.name == "train" else "thread"
    return step.commit(Outcome.total(runner.batches(step, *batches, where=where)))


def train_on(folder: Folder, name: str, shards: Sequence[str], source: Folder, settings: TokenizerSettings) -> Outcome:
    """Train on the train split of these shards, in one batch: training cannot be divided."""
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

    if settings.algorithm == "byte_bpe":
        reserved = settings.sentinels + 1 if settings.sentinels else 0
        vocab, merges = train_bpe(texts(), settings.vocab_size - reserved, settings.min_frequency)
        vocab = with_sentinels(vocab, settings.sentinels)
        content, size = tokenizer_files(vocab, merges), len(vocab)
    else:
        from tasks.tokenizer.sentencepiece_training import train_sentencepiece  # its library is an extra

        content, size = {}, 0
        if (first := next(found := texts(), None)) is not None:
            content = {MODEL: train_sentencepiece(chain([first], found), settings.vocab_size, settings.algorithm)}
            size = vocab_size(open_tokenizer(content, "trained"))
    if not counts["characters"]:
        remedy = "give more pages, or set tokenizer.name = 'gpt2'"
        raise UserError(f"no document of the train split in {source.url} to train a tokenizer on; {remedy}")
    return _commit(folder, content, {**counts, "vocab_size": size})


def with_sentinels(vocab: dict[str, int], sentinels: int) -> dict[str, int]:
    """Append `<pad>` and the sentinels of span corruption to a vocabulary, the first one last, as in T5's."""
    if not sentinels:
        return vocab
    names = [PADDING_TOKENS[0], *(f"<extra_id_{number}>" for number in reversed(range(sentinels)))]
    return vocab | {name: len(vocab) + number for number, name in enumerate(names)}


def fetch(folder: Folder, name: str, settings: TokenizerSettings) -> Outcome:
    """Copy the published files from a folder, or download them."""
    content, size = _published(settings.folder)
    if settings.sentinels:
        vocab, merges = parse_tables(*(content[name].decode() for name in (VOCAB, MERGES)))
        vocab = with_sentinels(vocab, settings.sentinels)
        content, size = tokenizer_files(vocab, merges), size + settings.sentinels + 1
    return _commit(folder, content, {"vocab_size": size})


def read_own(folder: Folder, name: str, settings: TokenizerSettings) -> Outcome:
    """Copy the user's own tokenizer."""
    content, size = own_files(settings)
    return _commit(folder, content, {"vocab_size": size})


def own_files(settings: TokenizerSettings) -> tuple[dict[str, bytes], int]:
    """Read the user's own tokenizer and convert it to the files of a tokenizer folder.

    Returns:
        Content of each file by name, and the number of tokens.

    Raises:
        UserError: a file is missing or damaged, or the tokenizer has no token that ends a text.
    """
    given = _on_disk(str(settings.folder))
    place = Path(given)
    if place.is_file():
        files, source = read_files(place), str(place.parent)
    else:
        folder = Folder(given)
        files, source = collect_files(folder.read_bytes, folder.url), folder.url
    try:
        content = canonical_files(files, source)
        return content, vocab_size(open_tokenizer(content, source))
    except UserError as error:
        raise UserError(f"tokenizer.folder: {error}") from error


def _published(source: str | None) -> tuple[dict[str, bytes], int]:
    """Content of the published files, from a folder or URL or downloaded, and the number of tokens."""
    if source is None:
        return published_files(None, REMEDY)
    folder = Folder(_on_disk(source))
    return published_files(collect_files(folder.read_bytes, folder.url), REMEDY, folder.url)


def _on_disk(source: str) -> str:
    """Return the folder of a tokenizer of the hub, downloaded; another path or URL as it is."""
    return str(local_copy(source, TOKENIZER_FILES)) if source.startswith(HUB) else source


def check_tokenizer(settings: TokenizerSettings) -> None:
    """Check the files of `tokenizer.folder` before the run starts.

    Raises:
        UserError: the files are missing or invalid.
    """
    if settings.name == "folder":
        own_files(settings)
    elif settings.folder:
        _published(settings.folder)


def _commit(folder: Folder, content: Mapping[str, bytes], facts: dict[str, int]) -> Outcome:
    for name, data in content.items():
        folder.write_bytes(name, data)
    return Outcome(outputs=tuple(folder.record(name) for name in content), facts=facts)
