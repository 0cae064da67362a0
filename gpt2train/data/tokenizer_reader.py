"""Files of a tokenizer: found under their published names, read, and what they say without a tokenizer made of them.

Files are passed as their content by our own names of them, whether they are in a folder, in a store or made here.
"""

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from gpt2train.data.added_tokens import (
    CONFIG,
    DECODER,
    SIDE_FILES,
    Added,
    stated_added,
    stated_tokens,
    with_added,
    with_ids,
    within_rows,
)
from gpt2train.data.bpe_tables import (
    MERGES,
    TOKENIZER,
    VOCAB,
    Tables,
    build_tokenizer,
    parse_tables,
    tables_of_json,
)
from gpt2train.data.sentencepiece_model import MODEL, MODEL_NAMES, SentencePieceTokenizer
from gpt2train.data.wordpiece import VOCAB_TXT, build_wordpiece
from gpt2train.errors import UserError, check_no_pointer
from gpt2train.store.files import ARCHIVES, check_folder

LEGACY = "legacy"  # of transformers: a text after an added token begins with a space
SOURCE_KEY = "gpt2train_source"  # in CONFIG: the file from which a tokenizer.json was converted for transformers
# Classes of transformers that number the pieces of a SentencePiece model otherwise, or change texts before it.
OTHER_IDS = (
    *("Albert", "Barthez", "Bartpho", "Camembert", "DebertaV2", "M2M100", "MBart", "Marian", "Nllb", "Pegasus"),
    *("Plbart", "PLBart", "Reformer", "Rembert", "RemBert", "XGLM", "XLMRoberta", "XLNet"),
)
# Classes of transformers for SentencePiece models that put `<s>` before a text by default.
BOS_CLASSES = tuple(f"{name}Tokenizer{fast}" for name in ("Llama", "CodeLlama", "Gemma") for fast in ("", "Fast"))
_GPT2 = ("gpt2", *(f"gpt2-{size}" for size in ("medium", "large", "xl")))  # as the files were named at first
# Our name of each file -> its names in published folders.
NAMES: dict[str, tuple[str, ...]] = {
    TOKENIZER: (TOKENIZER,),
    VOCAB: (VOCAB, "encoder.json", *(f"{name}-{VOCAB}" for name in _GPT2)),
    MERGES: (MERGES, "vocab.bpe", *(f"{name}-{MERGES}" for name in _GPT2)),
    MODEL: MODEL_NAMES,
    VOCAB_TXT: (VOCAB_TXT,),
}
BESIDE: dict[str, tuple[str, ...]] = {name: (name,) for name in (CONFIG, *SIDE_FILES)}  # files that add to a tokenizer
KINDS = f"{TOKENIZER}, {VOCAB} and {MERGES}, {MODEL}, or {VOCAB_TXT}"


def read_files(path: str | PathLike[str], rows: int | None = None) -> dict[str, bytes]:
    """Read the files of a tokenizer by their canonical names, from a folder or from one of its files.

    Args:
        path: folder or file. Of a `tokenizer.json`, and of a model or table with a name of its own, it is all.
        rows: as for `collect_files`.

    Raises:
        UserError: the path does not exist, cannot be read, or is a file of an unknown kind.
    """
    place = Path(path)
    if not place.is_file() or place.suffix.lower() in ARCHIVES:
        check_folder(place)
        return collect_files(lambda name: (place / name).read_bytes(), str(place), rows)
    return collect_files(lambda name: (place.parent / name).read_bytes(), str(place.parent), rows, _group(place.name))


def _group(file: str) -> dict[str, tuple[str, ...]]:
    """Return the files of a tokenizer that one of them stands for, as in `NAMES`, with those beside a known name.

    Raises:
        UserError: the file is of an unknown kind.
    """
    for ending in (VOCAB, MERGES):
        if file.endswith(f"-{ending}"):
            stem = file.removesuffix(ending)
            return {VOCAB: (f"{stem}{VOCAB}",), MERGES: (f"{stem}{MERGES}",), **BESIDE}
    canonical = next((name for name, published in NAMES.items() if file in published), None)
    if canonical in (VOCAB, MERGES):
        return {name: NAMES[name] for name in (VOCAB, MERGES)} | BESIDE
    if canonical in (MODEL, VOCAB_TXT):
        return {canonical: (file,), **BESIDE}
    kinds = {".model": MODEL, ".json": TOKENIZER}
    if (kind := kinds.get(Path(file).suffix)) is None:
        raise UserError(f"{file} is a tokenizer file of an unknown kind; give {KINDS}")
    return {kind: (file,)}


def collect_files(
    read: Callable[[str], bytes],
    source: str,
    rows: int | None = None,
    names: Mapping[str, tuple[str, ...]] = NAMES | BESIDE,
) -> dict[str, bytes]:
    """Collect the files of a tokenizer that exist, by their canonical names, with the tokens that files beside it add.

    Args:
        read: reads a file by its name; raises FileNotFoundError or another OSError.
        source: folder of the files, for error messages.
        rows: size of a model's vocabulary, beyond which special tokens are left out; None for a tokenizer alone.
        names: files to look for, as in `NAMES`.

    Raises:
        UserError: a file cannot be read, or a token has another id than a file states.
    """
    found: dict[str, bytes] = {}
    for canonical, published in names.items():
        for name in published:
            try:
                content = found.setdefault(canonical, read(name))
            except (FileNotFoundError, IsADirectoryError):
                continue
            except OSError as error:
                raise UserError(f"cannot read {source}/{name}: {error.strerror or error}; check the file") from error
            check_no_pointer(content, f"{source}/{name}")
    if MODEL in found and config_of(found).get(SOURCE_KEY) == MODEL:
        found.pop(TOKENIZER, None)
    found |= _with_added(found, source, rows)
    return {name: content for name, content in found.items() if name not in SIDE_FILES}


def _with_added(files: Mapping[str, bytes], source: str, rows: int | None) -> dict[str, bytes]:
    """Return the files that change by the tokens which files beside a tokenizer add."""
    if TOKENIZER not in files:
        if VOCAB in files and MERGES in files:
            return _tables_with_added(files, source, rows)
        if MODEL in files:
            return _pieces_with_added(files, source, rows)
    if not files.keys() & {TOKENIZER, VOCAB_TXT} or not (added := stated_tokens(files, source)):
        return {}
    try:
        plain = text_of(files, TOKENIZER, source) if TOKENIZER in files else wordpiece_of(files, source).to_str()
    except ValueError:  # its message comes where it is opened
        return {}
    text = with_added(plain, added, source, rows)
    return {} if text is None else {TOKENIZER: text.encode()}


def _tables_with_added(files: Mapping[str, bytes], source: str, rows: int | None) -> dict[str, bytes]:
    """Add tokens to GPT-2's tables: to the vocabulary, and in a `tokenizer.json` if there are others than its end."""
    added = stated_tokens(files, source)
    try:
        vocab = json.loads(files[VOCAB])
        known = {str(token): int(number) for token, number in vocab.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):  # its message comes where it is opened
        return {}
    new = [
        token for token in within_rows(added, known.keys(), rows) if token.id is not None or token.content not in known
    ]
    spaces = config_of(files).get("add_prefix_space") is True
    if not new and not spaces:
        return {}
    new = with_ids(new, known, source)
    known |= {token.content: token.id for token in new if token.id is not None}
    content = json.dumps(known, ensure_ascii=False).encode()
    try:
        tables = parse_tables(content.decode(), text_of(files, MERGES, source))
    except (ValueError, UnicodeError):
        return {VOCAB: content}
    plain = build_tokenizer(*tables)
    if spaces:
        plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    text = with_added(plain.to_str(), new, source) or (plain.to_str() if spaces else None)
    return {VOCAB: content} | ({} if text is None else {TOKENIZER: text.encode()})


def _pieces_with_added(files: Mapping[str, bytes], source: str, rows: int | None) -> dict[str, bytes]:
    """Add tokens to a SentencePiece model: its configuration states them all by their ids."""
    if (kind := str(config_of(files).get("tokenizer_class"))).startswith(OTHER_IDS):
        raise UserError(
            f"{source}/{CONFIG} names {kind}, whose ids are not those of the pieces in the SentencePiece model; save "
            f"the tokenizer as {TOKENIZER}"
        )
    model = SentencePieceTokenizer(files[MODEL], f"{source}/{MODEL}")
    added = stated_tokens(files, source, model.get_vocab_size())
    known = {str(model.id_to_token(number)): number for number in range(model.get_vocab_size())}
    added = [token for token in added if token.content not in known or not token.special]
    if not added:
        return {}
    found = with_ids(within_rows(added, known.keys(), rows), known, source)
    config = {"add_bos_token": adds_bos(files), LEGACY: spaces_each(files)}
    # They are found in the text as it is given: the space that a model puts before a text would hide them.
    config |= stated_added({token.id: token._replace(normalized=False) for token in found if token.id is not None})
    return {CONFIG: json.dumps(config, ensure_ascii=False).encode()}


def spaces_each(files: Mapping[str, bytes]) -> bool:
    """Return True if each part of a text between added tokens gets a first space; else the first part alone."""
    config = config_of(files)
    found = _flag(config, LEGACY)
    return config.get("tokenizer_class") not in BOS_CLASSES if found is None else found


def added_of(files: Mapping[str, bytes]) -> list[Added]:
    """Return the tokens beyond a SentencePiece model that its configuration states, as `collect_files` writes it."""
    config = config_of(files)
    return stated_tokens({CONFIG: json.dumps({DECODER: config.get(DECODER, {})}).encode()}, CONFIG)


def has_tokenizer(folder: str | PathLike[str]) -> bool:
    """Return True if a folder has the files of a tokenizer."""
    path = Path(folder)
    kinds = {kind for kind, names in NAMES.items() if any((path / name).is_file() for name in names)}
    return {VOCAB, MERGES} <= kinds or not kinds.isdisjoint((TOKENIZER, MODEL, VOCAB_TXT))


def tables_of(files: Mapping[str, bytes], source: str) -> Tables | None:
    """Tables of a tokenizer of GPT-2's kind; None if it is of another kind.

    A `tokenizer.json` of another kind, or with more added tokens than the one that ends a text, has the last word: its
    folder may have the tables too.

    Raises:
        UserError: the files are tables alone, and not GPT-2's.
    """
    from_json = tables_of_json(text_of(files, TOKENIZER, source)) if TOKENIZER in files else None
    if VOCAB in files and MERGES in files and (from_json or TOKENIZER not in files):
        try:
            return parse_tables(text_of(files, VOCAB, source), text_of(files, MERGES, source))
        except ValueError as error:
            if from_json is None:
                raise UserError(f"{source} has no GPT-2 tokenizer: {error}") from error
    return from_json


def ids_before_text(processor: dict[str, Any] | None) -> list[int]:
    """Return the ids that a post-processor, in the form of a `tokenizer.json`, puts before a single text."""
    if processor is None:
        return []
    match processor["type"]:
        case "TemplateProcessing":
            found: list[int] = []
            for piece in processor["single"]:
                if "Sequence" in piece:
                    break
                found += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
            return found
        case "BertProcessing" | "RobertaProcessing":
            return [processor["cls"][1]]
        case "Sequence":  # each one takes the result of the one before
            return [number for inner in reversed(processor["processors"]) for number in ids_before_text(inner)]
    return []


def has_prefix(files: Mapping[str, bytes]) -> bool:
    """Return True if a `tokenizer.json` puts tokens before a text, which GPT-2's three files would lose."""
    content = files.get(TOKENIZER, b"")
    if b"Processing" not in content:
        return False
    try:
        return bool(ids_before_text(json.loads(content).get("post_processor")))
    except (ValueError, LookupError, TypeError, AttributeError):  # a damaged file, which gets its message later
        return False


def wordpiece_of(files: Mapping[str, bytes], source: str) -> Tokenizer:
    """Build the tokenizer of a `vocab.txt` by the settings of `tokenizer_config.json`.

    Raises:
        ValueError: the vocabulary is incomplete.
    """
    config = config_of(files)
    lower, accents = (_flag(config, name) for name in ("do_lower_case", "strip_accents"))
    text = text_of(files, VOCAB_TXT, source)
    return build_wordpiece(text, lower, accents, _flag(config, "tokenize_chinese_chars") is not False)


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    found = config.get(name)
    return found if isinstance(found, bool) else None


def adds_bos(files: Mapping[str, bytes]) -> bool:
    """Return True if texts begin with `<s>` by `tokenizer_config.json`, or by the default of its class."""
    config = config_of(files)
    found = _flag(config, "add_bos_token")
    return config.get("tokenizer_class") in BOS_CLASSES if found is None else found


def config_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """`tokenizer_config.json`, empty if there is none or it is damaged."""
    try:
        config = json.loads(files.get(CONFIG, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def text_of(files: Mapping[str, bytes], name: str, source: str) -> str:
    """Return the content of a file as text; UserError if it is not UTF-8."""
    try:
        return files[name].decode()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {source}/{name}: {error}; copy the folder again") from error
