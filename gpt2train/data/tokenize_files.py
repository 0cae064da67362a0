"""Loose files to one token file pair: nothing filtered, nothing reordered (Megatron-LM's `tools/preprocess_data.py`).

Documents are read in order and cut into blocks that depend on the files alone. Workers encode blocks, and their tokens
are appended in order, so that the bytes do not depend on the number of workers. `<prefix>.partial/` holds the tokens so
far and the number of blocks in them: an interrupted run continues from there.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from gpt2train.data.documents import Rejected, Row, expand, read_rows, read_text
from gpt2train.data.indexed import bin_path, check_new_pair, idx_path, token_dtype, write_index
from gpt2train.data.template import prefix_ids
from gpt2train.data.tokenize_block import BlockEncoder, EncodedBlock, encode_in_worker, start_worker
from gpt2train.data.tokenize_options import TokenizeOptions
from gpt2train.data.tokenizer import canonical_files, end_of_text_id, open_tokenizer, vocab_size
from gpt2train.errors import UserError
from gpt2train.extras import version_of
from gpt2train.store.files import atomic_file, atomic_folder, make_folder, write_error

FORMAT = 4  # of the partial files
BLOCK_BYTES = 1 << 22  # of stored documents; about a second of the reference encoder
SAVE_SECONDS = 10.0  # between two records of the progress
BLOCKS_AHEAD = 2  # blocks in flight per worker
LIBRARIES = ("tokenizers", "sentencepiece", "gigatoken")


@dataclass
class Progress:
    """Tokens that are on disk."""

    identity: str  # hash of everything that the tokens depend on
    blocks: int = 0
    documents: int = 0
    tokens: int = 0
    rejected_bytes: int = 0  # size of the file of rejected documents
    reasons: dict[str, int] = field(default_factory=dict)  # rejected documents by reason
    notes: dict[str, int] = field(default_factory=dict)
    """Documents with tokens that may not be what was meant: see `EncodedBlock.notes`."""


def tokenize_files(inputs: list[Path], output: Path, files: dict[str, bytes], options: TokenizeOptions) -> Progress:
    """Encode all documents of the inputs, in their order, to `<output>.bin` and `<output>.idx`.

    The tokenizer is written to `tokenizer/` beside them, where training, merge and trace look for it, and rejected
    documents to `<output>.rejected.jsonl`.

    Args:
        inputs: files and folders.
        output: prefix of the pair.
        files: files of the tokenizer; see `tokenizer_reader.read_files`.
        options: options of the command; the tokenizer's name is for error messages.

    Returns:
        Numbers of documents, tokens and rejected documents.

    Raises:
        UserError: an input or the tokenizer cannot be read, the pair exists, another run writes it, there is another
            tokenizer beside it, or no document has a text under this key.
    """
    partial = Path(f"{output}.partial")
    if (partial / "progress.json").exists() and bin_path(output).exists() and not idx_path(output).exists():
        bin_path(output).rename(partial / "tokens")  # a run was killed in `_finish`
        if (rejected := rejected_path(output)).exists():
            rejected.rename(partial / "rejected")
    check_new_pair(output, "--output")
    documents, source = check_inputs(inputs, options), options.tokenizer
    canonical = canonical_files(files, source)
    tokenizer = open_tokenizer(canonical, source)
    dtype = token_dtype(vocab_size(tokenizer))
    if options.append_eod:
        end_of_text_id(tokenizer)  # before any work
    if options.prepend_bos and not prefix_ids(tokenizer):
        raise UserError(f"the tokenizer {source} puts no token before a text; leave out --prepend-bos")
    try:
        make_folder(output.parent)
        _put_tokenizer(output.parent / "tokenizer", canonical)
        make_folder(partial)
        with filelock.FileLock(partial / "lock", timeout=0):
            progress = _encode_all(partial, documents, (canonical, options, dtype.name))
            if not progress.documents:
                raise UserError(_nothing(progress, partial))
            _finish(partial, output, dtype)
    except filelock.Timeout as error:
        raise UserError(f"another run writes {output}; wait for it, or give another --output") from error
    except OSError as error:
        raise write_error(output, error) from error
    shutil.rmtree(partial)
    return progress


def check_inputs(inputs: list[Path], options: TokenizeOptions) -> list[Path]:
    """List the files of the inputs, and check that a document of the first block has the key.

    Without this a wrong key would cost a tokenizer, which takes a second of CPU in each process.

    Raises:
        UserError: an input cannot be read, or no document of the first block has the key.
    """
    documents, detail = expand(inputs), None
    for row in next(blocks_of(documents, options), []):
        text = read_text(row, options.json_key)
        if not isinstance(text, Rejected) or text.reason != "no_key":
            return documents
        detail = text.detail
    if detail is not None:
        raise UserError(f"no document has the key {options.json_key!r} ({detail}); give --json-key")
    return documents


def rejected_path(output: Path) -> Path:
    """Path of the documents without tokens."""
    return output.with_name(f"{output.name}.rejected.jsonl")


def blocks_of(files: list[Path], options: TokenizeOptions) -> Iterator[list[Row]]:
    """Cut the documents of files into blocks of about `BLOCK_BYTES`."""
    block: list[Row] = []
    size = 0
    for file in files:
        for row in read_rows(file, options.json_key, options.separator):
            block.append(row)
            size += len(row.content)
            if size >= BLOCK_BYTES:
                yield block
                block, size = [], 0
    if block:
        yield block


def _encode_all(partial: Path, files: list[Path], arguments: tuple[dict[str, bytes], TokenizeOptions, str]) -> Progress:
    """Append the tokens of all blocks that are not yet on disk; the arguments are those of `BlockEncoder`."""
    tokenizer, options, dtype = arguments
    progress = _restore(partial, _identity(files, tokenizer, options), np.dtype(dtype).itemsize)
    remaining = islice(blocks_of(files, options), progress.blocks, None)
    saved = time.monotonic()
    with (
        (partial / "tokens").open("ab") as tokens,
        (partial / "lengths").open("ab") as lengths,
        (partial / "rejected").open("ab") as rejected,
    ):
        for block in _encoded(remaining, arguments, options.workers or 1):
            tokens.write(block.ids.data)
            lengths.write(block.lengths.data)
            for one in block.rejected:
                row = {"file": one.place, "line": one.line, "reason": one.reason, "detail": one.detail}
                rejected.write(json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n")
            progress.blocks += 1
            progress.documents += len(block.lengths)
            progress.tokens += len(block.ids)
            progress.notes = dict(Counter(progress.notes) + Counter(block.notes))
            progress.reasons = dict(Counter(progress.reasons) + Counter(one.reason for one in block.rejected))
            if time.monotonic() - saved > SAVE_SECONDS:
                _save(partial, progress, [tokens, lengths, rejected])
                saved = time.monotonic()
        _save(partial, progress, [tokens, lengths, rejected])
    return progress


def _encoded(blocks: Iterator[list[Row]], arguments: tuple[Any, ...], workers: int) -> Iterator[EncodedBlock]:
    """Encode blocks in order, in worker processes if more than one is wanted."""
    if workers == 1:
        yield from map(BlockEncoder(*arguments), blocks)
        return
    # Spawned: `tokenizers` misbehaves after a fork of a process with threads.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker, arguments)
    try:
        waiting: deque[Future[EncodedBlock]] = deque()
        for block in blocks:
            waiting.append(pool.submit(encode_in_worker, block))
            if len(waiting) > BLOCKS_AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _identity(files: list[Path], tokenizer: dict[str, bytes], options: TokenizeOptions) -> str:
    """Hash of what the tokens depend on; of the inputs their names, sizes and times."""
    inputs = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    contents = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(tokenizer.items())}
    chosen = [options.json_key, options.append_eod, options.prepend_bos, options.separator]
    parts = [FORMAT, BLOCK_BYTES, inputs, contents, chosen, [version_of(name) for name in LIBRARIES]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _restore(partial: Path, identity: str, itemsize: int) -> Progress:
    """Cut the partial files to what the record of the progress names; without a valid one, to nothing."""
    progress = Progress(identity)
    with contextlib.suppress(OSError, ValueError, TypeError):  # none, or one of another format
        found = Progress(**json.loads((partial / "progress.json").read_bytes()))
        progress = found if found.identity == identity else progress
    wanted = {
        "tokens": progress.tokens * itemsize,
        "lengths": progress.documents * 4,
        "rejected": progress.rejected_bytes,
    }
    sizes = {name: (partial / name).stat().st_size if (partial / name).exists() else 0 for name in wanted}
    if any(sizes[name] < wanted[name] for name in wanted):
        progress, wanted = Progress(identity), dict.fromkeys(wanted, 0)
    for name, size in wanted.items():
        with (partial / name).open("ab") as file:
            file.truncate(size)
    return progress


def _save(partial: Path, progress: Progress, files: list[Any]) -> None:
    """Force the files to the disk, then record what they hold."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    progress.rejected_bytes = (partial / "rejected").stat().st_size
    with atomic_file(partial / "progress.json", partial / ".tmp-progress.json") as draft:
        draft.write_text(json.dumps(progress.__dict__), encoding="utf-8")


def _finish(partial: Path, output: Path, dtype: np.dtype[Any]) -> None:
    """Move the tokens to their names; the index comes last, since without it there is no dataset."""
    rejected = rejected_path(output)
    rejected.unlink(missing_ok=True)
    if (partial / "rejected").stat().st_size:
        (partial / "rejected").rename(rejected)
    lengths = np.fromfile(partial / "lengths", dtype="<i4")
    with atomic_file(idx_path(output), partial / "index") as draft:
        write_index(draft, lengths, dtype)
        (partial / "tokens").rename(bin_path(output))


def _put_tokenizer(folder: Path, files: dict[str, bytes]) -> None:
    """Write the tokenizer beside the tokens, if it is not there."""
    if folder.exists():
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in files}
        if found != files:
            raise UserError(f"{folder} has another tokenizer; give an --output in another folder")
        return
    with atomic_folder(folder) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)


def _nothing(progress: Progress, partial: Path) -> str:
    """Message for inputs without a single document."""
    if not progress.reasons:
        return "no document has a text (the inputs are empty); check the inputs and --json-key"
    with (partial / "rejected").open("rb") as file:
        first = json.loads(file.readline())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(progress.reasons.items()))
    place = f"{first['file']}, line {first['line']}" if first["line"] else first["file"]
    return f"no document has a text ({reasons}); {place}: {first['detail']}; check the inputs and --json-key"
