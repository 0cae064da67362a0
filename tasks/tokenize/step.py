"""Turn documents into tokens: Megatron `.bin/.idx` per split, and a table that leads each token back to its page.

Writes `tokens/{train,valid,test}/tokens.bin`, `tokens.idx` and `documents.parquet` (`start`, `end`: token offsets in
the split; `doc_id`, `url`), in the order of the shards and rows that come in. Each document ends with
`<|endoftext|>`; the same letters inside a text stay letters. A split of more than `shard_tokens` is cut between
documents: `tokens-00000-of-00003.bin` and so on, each with its index and its table.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AliasChoices, Field
from tokenizers import Tokenizer

from gpt2train.data.encoder import Encoder, FastEncoder, PlainEncoder, Texts, disagreement, with_end
from gpt2train.data.indexed import token_dtype
from gpt2train.data.tokenizer import TOKENIZER, end_of_text_id, parse_tokenizer
from gpt2train.errors import UserError
from gpt2train.settings import Settings
from tasks.runner import Runner
from tasks.shards import REJECTED, read_table, rejected_row, write_rows, write_table
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder
from tasks.tokenize.join import ENCODED, SPLITS, join_part, plan

log = logging.getLogger("gpt2train")

CHECK_SHARDS = 16  # of a corpus, evenly spaced, on which the fast encoder is held against the reference
CHECK_BYTES = 1 << 20  # of text for that; a quarter of a second
COLUMNS = ["id", "url", "text", "source", "split"]
Engine = Literal["gigatoken", "tokenizers"]
ENGINES: dict[Engine, Callable[[Tokenizer], Encoder]] = {"gigatoken": FastEncoder, "tokenizers": PlainEncoder}


class TokenizeSettings(Settings):
    """How documents become tokens."""

    append_end_of_text: bool = Field(True, validation_alias=AliasChoices("append_end_of_text", "append_eod"))
    """End each document with `<|endoftext|>`, so that the model learns where a text ends (Megatron's --append-eod)."""
    shard_tokens: int = Field(default=1 << 30, ge=1)
    """Tokens of a file; a split that holds more is cut between documents (2^30 tokens are 2 GB of uint16)."""
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto"
    """Which library encodes; the tokens are the same. `auto`: gigatoken where it is installed and agrees with
    `tokenizers` on a sample of this corpus. `gigatoken`: the same, and an error where it does not."""


def tokenize(
    root: Folder, documents: Manifest, tokenizer: Manifest, settings: TokenizeSettings, runner: Runner
) -> Manifest:
    """Encode all documents with the tokenizer of the run and write one token file pair (or several) per split.

    A split without documents gets a pair without documents. A row without text, without a split, or whose text is no
    UTF-8, is rejected (`empty`, `no_split`, `not_utf8`).

    Raises:
        UserError: `engine = "gigatoken"` cannot be had, or does not agree with `tokenizers` on this corpus.
    """
    inputs = {"documents": documents, "tokenizer": tokenizer}
    parameters = settings.model_dump(mode="json", exclude={"engine"})  # changes no byte
    step = Step(
        root, "tokenize", version=2, parameters=parameters, inputs=inputs, folder="tokens", packages=("tokenizers",)
    )
    if done := runner.finished(step):
        return done
    shards = [record.name for record in documents.outputs]
    source = root / documents.folder
    tokenizer_file = tokenizer.output(TOKENIZER)
    place = (root / tokenizer.folder, tokenizer_file.name, tokenizer_file.sha256)
    engine, checked = choose_engine(step, shards, source, place, settings.engine, runner)
    append = settings.append_end_of_text
    encoded = runner.batches(step, "part", shards, encode_shard, source, place, append, engine)
    dtype = token_dtype(_tokenizer(*place).get_vocab_size()).name
    names = [record for outcome in encoded for record in outcome.outputs if record.name.endswith(".bin")]
    # Joining copies bytes: a thread is enough, and no worker has to load anything.
    pieces = [piece for split in SPLITS for piece in plan(step.folder, names, split, settings.shard_tokens)]
    joined = runner.batches(step, "join", pieces, join_part, dtype, where="node")
    # The encoded shards were for this step alone: not named by the manifest, they are swept.
    counted = [outcome.model_copy(update={"outputs": ()}) for outcome in encoded]
    return step.commit(Outcome.total([checked, *counted, *joined]))


def choose_engine(
    step: Step,
    shards: Sequence[str],
    source: Folder,
    place: tuple[Folder, str, str],
    wanted: Literal["auto", "gigatoken", "tokenizers"],
    runner: Runner,
) -> tuple[Engine, Outcome]:
    """The library that encodes, after the fast one was held against the reference on a sample of this corpus.

    Returns:
        its name, and what the manifest is told: how many sampled documents it got wrong, when it did.
    """
    if wanted == "tokenizers":
        return "tokenizers", Outcome()
    sample = tuple(shards[:: -(-len(shards) // CHECK_SHARDS)]) if shards else ()
    facts = runner.batches(step, "check", [sample], check_engine, source, place)[0].facts
    if facts.get("unavailable"):
        if wanted == "gigatoken":
            raise UserError(
                "tokenize.engine = 'gigatoken', but gigatoken does not work here;"
                " pip install gigatoken, or take tokenize.engine = 'auto'"
            )
        log.info("gigatoken is not installed: tokenizers encodes, at a fraction of its speed")
        return "tokenizers", Outcome()
    wrong, seen = facts["mismatches"], facts["documents"]
    if not wrong:
        return "gigatoken", Outcome()
    found = f"gigatoken and tokenizers give different tokens for {wrong:,} of {seen:,} documents of {source.url}"
    if wanted == "gigatoken":
        raise UserError(f"{found}; take tokenize.engine = 'auto', which then uses tokenizers")
    log.warning(f"{found}: tokenizers is used")
    return "tokenizers", Outcome(facts={"engine_mismatches": wrong})


def check_engine(
    folder: Folder, name: str, shards: Sequence[str], source: Folder, place: tuple[Folder, str, str]
) -> Outcome:
    """Encode the beginnings of some documents with both libraries and count where they differ."""
    texts: list[str] = []
    for shard in shards:
        table = read_table(source, shard, columns=["text"])
        budget = CHECK_BYTES // len(shards)
        # From all over the shard: its first rows may all be of one site.
        chosen = table["text"].take(np.arange(0, table.num_rows, max(1, table.num_rows // 64)))
        for raw in chosen.cast(pa.large_binary()).to_pylist():
            if raw and budget > 0:
                texts.append(raw[: min(budget, CHECK_BYTES // 16)].decode(errors="ignore"))
                budget -= len(raw)
    try:
        fast = _encoder(*place, "gigatoken")
        wrong = disagreement(fast, _encoder(*place, "tokenizers"), Texts.of(texts))
    except (ImportError, ValueError) as error:
        log.debug("gigatoken: %s", error)
        return Outcome(facts={"unavailable": 1})
    return Outcome(facts={"documents": len(texts), "mismatches": len(wrong)})


def encode_shard(
    folder: Folder,
    name: str,
    shard: str,
    source: Folder,
    place: tuple[Folder, str, str],
    append_end_of_text: bool,
    engine: Engine,
) -> Outcome:
    """Encode one shard: `encoded/<name>.<split>.bin` and a table of its documents, for each split."""
    tokenizer = _tokenizer(*place)
    dtype = token_dtype(tokenizer.get_vocab_size())
    end = end_of_text_id(tokenizer) if append_end_of_text else None
    table = read_table(source, shard, COLUMNS)
    good, rejected = _sift(table)
    outputs = []
    for split in SPLITS:
        mine = good.filter(pc.equal(good["split"], split))
        target = f"encoded/{name}.{split}"
        lengths = [np.empty(0, dtype=np.int64)]
        with folder.writing(f"{target}.bin") as draft, draft.open("wb") as file:
            for chunk in mine["text"].chunks:
                encoded = with_end(_encoder(*place, engine)(_texts(chunk)), end, dtype)
                file.write(encoded.ids.data)
                lengths.append(encoded.lengths)
        counts = np.concatenate(lengths)
        outputs.append(folder.record(f"{target}.bin", rows=int(counts.sum())))
        columns = [mine["id"].cast(pa.string()), mine["url"].cast(pa.string()), pa.array(counts)]
        outputs.append(write_table(folder, f"{target}.parquet", pa.Table.from_arrays(columns, schema=ENCODED)))
    dropped = (write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else ()
    reasons = dict(sorted(Counter(row["reason"] for row in rejected).items()))
    return Outcome(outputs=tuple(outputs), rejected=dropped, seen=table.num_rows, kept=good.num_rows, reasons=reasons)


def _sift(table: pa.Table) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The rows that can be encoded, and rejected rows for the others."""
    text = pc.fill_null(table["text"].cast(pa.large_binary()), b"")
    empty = pc.equal(pc.binary_length(text), 0)
    homeless = pc.invert(pc.is_in(table["split"], pa.array(SPLITS)))
    broken = pa.array(np.zeros(table.num_rows, dtype=bool))
    try:
        table["text"].validate(full=True)
    except pa.ArrowInvalid:  # some text is no UTF-8: only then is each looked at
        broken = pa.array([not _is_utf8(raw) for raw in text.to_pylist()], pa.bool_())
    bad = pc.or_(pc.or_(empty, homeless), broken)
    rejected = []
    for number in np.flatnonzero(np.asarray(bad)).tolist():
        raw = text[number].as_py()
        row = {key: table[key][number].as_py() for key in ("id", "url", "source", "split")}
        row["text"] = raw.decode(errors="replace")
        if not raw:
            rejected.append(rejected_row(row, "empty", "a document without text has no tokens"))
        elif not _is_utf8(raw):
            rejected.append(rejected_row(row, "not_utf8", "the text is not UTF-8, as Parquet strings have to be"))
        else:
            detail = f"split is {row['split']!r}, one of {', '.join(SPLITS)} expected"
            rejected.append(rejected_row(row, "no_split", detail))
    return table.filter(pc.invert(bad)), rejected


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _texts(column: pa.Array) -> Texts:
    """A column of strings as the encoders take it, without a copy."""
    strings = column.cast(pa.large_string())
    _, offsets, data = strings.buffers()
    if not len(strings):
        return Texts.of([])
    places = np.frombuffer(offsets, dtype=np.int64)[strings.offset : strings.offset + len(strings) + 1]
    first, last = int(places[0]), int(places[-1])
    return Texts(np.frombuffer(data, dtype=np.uint8)[first:last], places - first)


@functools.lru_cache(maxsize=1)
def _cached(url: str, name: str, sha256: str) -> tuple[Tokenizer, dict[str, Encoder]]:
    return parse_tokenizer(Folder(url).read_bytes(name).decode(), f"{url}/{name}"), {}


def _tokenizer(folder: Folder, name: str, sha256: str) -> Tokenizer:
    """The tokenizer of the run, kept from batch to batch; its hash makes another file another entry."""
    return _cached(folder.url, name, sha256)[0]


def _encoder(folder: Folder, name: str, sha256: str, engine: Engine) -> Encoder:
    """An encoder of the run's tokenizer, kept from batch to batch with the words that it has seen."""
    tokenizer, encoders = _cached(folder.url, name, sha256)
    if engine not in encoders:
        encoders[engine] = ENGINES[engine](tokenizer)
    return encoders[engine]
