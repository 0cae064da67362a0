"""Documents to tokens: Megatron `.bin/.idx` files per split, and a table that maps each token to its page.

Writes `tokens/{train,valid,test}/tokens.bin`, `tokens.idx` and `documents.parquet` (`start`, `end`: token offsets in
the split; `doc_id`, `url`), in the order of the input shards and rows. Each document ends with the token
`<|endoftext|>`; the same characters inside a text are encoded as text. A split of more than `shard_tokens` is divided
between documents: `tokens-00000-of-00003.bin` and so on, each with its index and its table.
"""

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.data.encoder import Texts, disagreement, with_end
from gpt2train.data.indexed import token_dtype
from gpt2train.data.sentencepiece_model import MODEL
from gpt2train.data.template import prefix_ids
from gpt2train.data.tokenizer import end_of_text_id, vocab_size
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
from tasks.core.engine_check import check_engine
from tasks.core.runner import Runner
from tasks.core.shards import REJECTED, read_table, rejected_row, write_rows, write_table
from tasks.core.step import Step
from tasks.core.tokenizer_file import Engine, TokenizerFile, encoder_of, tokenizer_file, tokenizer_of
from tasks.tokenize.merge_shards import ENCODED, SPLITS, join_part, plan
from tasks.tokenize.settings import TokenizeSettings

log = logging.getLogger("gpt2train")

CHECK_BYTES = 1 << 20  # bytes of text for the comparison; takes a quarter of a second
COLUMNS = ["id", "url", "text", "source", "split"]


def tokenize(
    root: Folder, documents: Manifest, tokenizer: Manifest, settings: TokenizeSettings, runner: Runner
) -> Manifest:
    """Encode all documents with the tokenizer of the run and write one token file pair (or several) per split.

    A split without documents gets a file pair without documents. A row without text, without a split, or with a text
    that is not UTF-8 is rejected (`empty`, `no_split`, `not_utf8`).

    Returns:
        Manifest of `tokens/`.

    Raises:
        UserError: `engine = "gigatoken"` is not available, or does not agree with `tokenizers` on this corpus.
    """
    inputs = {"documents": documents, "tokenizer": tokenizer}
    file = tokenizer_file(root, tokenizer)
    prefix = prefix_ids(tokenizer_of(file)) if settings.prepend_bos else []
    # The engine changes no byte, and without a template neither does `prepend_bos`.
    parameters = settings.model_dump(mode="json", exclude={"engine", "prepend_bos"})
    parameters |= {"prefix": prefix} if prefix else {}
    library = "sentencepiece" if file.name == MODEL else "tokenizers"
    step = Step(root, "tokenize", version=2, parameters=parameters, inputs=inputs, folder="tokens", packages=(library,))
    if done := runner.finished(step):
        return done
    shards = [record.name for record in documents.outputs]
    source = root / documents.folder
    engine, checked = choose_engine(step, shards, source, file, settings.engine, runner)
    append = settings.append_end_of_text
    encoded = runner.batches(step, "part", shards, encode_shard, source, file, append, engine, prefix)
    dtype = token_dtype(vocab_size(tokenizer_of(file))).name
    names = [record for outcome in encoded for record in outcome.outputs if record.name.endswith(".bin")]
    # Merging copies bytes: a thread suffices, and no worker has to load libraries.
    pieces = [piece for split in SPLITS for piece in plan(step.folder, names, split, settings.shard_tokens)]
    joined = runner.batches(step, "join", pieces, join_part, dtype, where="node")
    # The encoded shards are intermediate: the manifest does not name them, so they are removed.
    counted = [outcome.model_copy(update={"outputs": ()}) for outcome in encoded]
    return step.commit(Outcome.total([checked, *counted, *joined]))


def choose_engine(
    step: Step,
    shards: Sequence[str],
    source: Folder,
    file: TokenizerFile,
    wanted: Literal["auto", "gigatoken", "tokenizers"],
    runner: Runner,
) -> tuple[Engine, Outcome]:
    """Choose the encoder after comparing the fast one with the reference on a sample of the corpus.

    Returns:
        Name of the encoder, and an outcome with the number of mismatches if there are any.

    Raises:
        UserError: `wanted` is `gigatoken`, and it is not available or does not agree with `tokenizers`.
    """
    if wanted == "tokenizers":
        return "tokenizers", Outcome()
    compare = functools.partial(count_mismatches, file=file)
    checked, difference = check_engine(step, source, shards, CHECK_BYTES, runner, compare)
    if "engine_checked" not in checked.facts:
        if wanted == "gigatoken":
            remedy = "pip install gigatoken, or set tokenize.engine = 'auto'"
            raise UserError(f"tokenize.engine = 'gigatoken', but gigatoken does not work here; {remedy}")
        log.info("gigatoken is not available for this tokenizer: using its own library, which is many times slower")
        return "tokenizers", Outcome()
    if not difference:
        return "gigatoken", Outcome()
    found = f"gigatoken and tokenizers give different tokens {difference}"
    if wanted == "gigatoken":
        raise UserError(f"{found}; set tokenize.engine = 'auto', which then uses tokenizers")
    log.warning(f"{found}: using tokenizers")
    return "tokenizers", Outcome(facts={"engine_mismatches": checked.facts["engine_mismatches"]})


def count_mismatches(texts: list[str], file: TokenizerFile) -> int | None:
    """Number of texts that gigatoken encodes to other tokens than `tokenizers`; None if it is not available."""
    try:
        fast = encoder_of(file, "gigatoken")
        return len(disagreement(fast, encoder_of(file, "tokenizers"), Texts.of(texts)))
    except (ImportError, ValueError) as error:
        log.debug("gigatoken: %s", error)
        return None


def encode_shard(
    folder: Folder,
    name: str,
    shard: str,
    source: Folder,
    file: TokenizerFile,
    append_end_of_text: bool,
    engine: Engine,
    prefix: Sequence[int] = (),
) -> Outcome:
    """Encode one shard into `encoded/<name>.<split>.bin` and a table of its documents, for each split."""
    tokenizer = tokenizer_of(file)
    dtype = token_dtype(vocab_size(tokenizer))
    end = end_of_text_id(tokenizer) if append_end_of_text else None
    table = read_table(source, shard, COLUMNS)
    good, rejected = _split_valid(table)
    outputs = []
    for split in SPLITS:
        rows = good.filter(pc.equal(good["split"], split))
        target = f"encoded/{name}.{split}"
        lengths = [np.empty(0, dtype=np.int64)]
        with folder.writing(f"{target}.bin") as draft, draft.open("wb") as binary:
            for chunk in rows["text"].chunks:
                encoded = with_end(encoder_of(file, engine)(_texts(chunk)), end, dtype, prefix)
                binary.write(encoded.ids.data)
                lengths.append(encoded.lengths)
        counts = np.concatenate(lengths)
        outputs.append(folder.record(f"{target}.bin", rows=int(counts.sum())))
        columns = [rows["id"].cast(pa.string()), rows["url"].cast(pa.string()), pa.array(counts)]
        outputs.append(write_table(folder, f"{target}.parquet", pa.Table.from_arrays(columns, schema=ENCODED)))
    dropped = (write_rows(folder, f"rejected/{name}.parquet", rejected, REJECTED),) if rejected else ()
    reasons = dict(sorted(Counter(row["reason"] for row in rejected).items()))
    return Outcome(outputs=tuple(outputs), rejected=dropped, seen=table.num_rows, kept=good.num_rows, reasons=reasons)


def _split_valid(table: pa.Table) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Split a table into rows that can be encoded, and rejected rows."""
    text = pc.fill_null(table["text"].cast(pa.large_binary()), b"")
    empty = pc.equal(pc.binary_length(text), 0)
    without_split = pc.invert(pc.is_in(table["split"], pa.array(SPLITS)))
    not_utf8 = pa.array(np.zeros(table.num_rows, dtype=bool))
    try:
        table["text"].validate(full=True)
    except pa.ArrowInvalid:  # some text is not UTF-8: only then each one is tested
        not_utf8 = pa.array([not _is_utf8(raw) for raw in text.to_pylist()], pa.bool_())
    bad = pc.or_(pc.or_(empty, without_split), not_utf8)
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
    """Column of strings in the layout of the encoders, without a copy."""
    strings = column.cast(pa.large_string())
    _, offsets, data = strings.buffers()
    if not len(strings):
        return Texts.of([])
    positions = np.frombuffer(offsets, dtype=np.int64)[strings.offset : strings.offset + len(strings) + 1]
    first, last = int(positions[0]), int(positions[-1])
    return Texts(np.frombuffer(data, dtype=np.uint8)[first:last], positions - first)
