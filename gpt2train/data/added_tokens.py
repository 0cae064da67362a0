"""Tokens that the files beside a tokenizer add to it, with their ids, as transformers adds them.

| file | what it states |
|---|---|
| `tokenizer_config.json`, `added_tokens_decoder` | id -> token with its properties (since transformers 4.34) |
| `added_tokens.json` | token -> id (before) |
| `special_tokens_map.json`, and its names in `tokenizer_config.json` | special tokens; new ones get the next ids |
| `extra_ids` of T5's class, 100 by default | sentinels after the pieces of a SentencePiece model, the first one last |
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import tokenizers

from gpt2train.errors import UserError

CONFIG, ADDED, SPECIAL_MAP = "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"
MODEL_CONFIG = "config.json"  # its model type decides the class where nothing else does
DECODER = "added_tokens_decoder"
SIDE_FILES = (ADDED, SPECIAL_MAP, MODEL_CONFIG)
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
LISTS = ("additional_special_tokens", "extra_special_tokens")
PROPERTIES = ("lstrip", "rstrip", "single_word", "normalized", "special")
T5_CLASSES, T5_TYPES, EXTRA_IDS = ("T5Tokenizer", "T5TokenizerFast"), ("t5", "longt5"), 100
MAX_EXTRA_IDS = 2**16


class Added(NamedTuple):
    """Token that a file adds."""

    content: str
    id: int | None  # id that the file states; None for the next one
    file: str
    special: bool = True  # it is never found in a text
    lstrip: bool = False  # it takes the spaces before it
    rstrip: bool = False
    single_word: bool = False  # it is found only where a word begins and ends
    normalized: bool = False

    def stated(self) -> dict[str, Any]:
        """Return the entry of `added_tokens_decoder`."""
        return {"content": self.content, **{name: getattr(self, name) for name in PROPERTIES}}

    def as_token(self) -> tokenizers.AddedToken:
        """Return the token of `tokenizers`."""
        return tokenizers.AddedToken(self.content, **{name: getattr(self, name) for name in PROPERTIES})


def stated_tokens(files: Mapping[str, bytes], source: str, pieces: int | None = None) -> list[Added]:
    """Return the tokens that the files beside a tokenizer state, in the order of their ids.

    Args:
        files: content by canonical name.
        source: folder of the files, for error messages.
        pieces: number of pieces of a SentencePiece model; None for another kind.

    Raises:
        UserError: a file is damaged.
    """
    config, by_name = _json(files, CONFIG, source), dict[str, Any]()
    by_id = list[Added]()
    try:
        if DECODER in config:
            by_id = [_token(one, CONFIG, int(number)) for number, one in config[DECODER].items()]
        else:
            by_name = _json(files, SPECIAL_MAP, source)
        special = list(_special(config | by_name))
        if DECODER not in config:
            known = {token.content for token in special}
            by_id = [
                Added(content, int(number), ADDED, content in known, normalized=content not in known)
                for content, number in _json(files, ADDED, source).items()
            ]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{source}: {CONFIG}, {SPECIAL_MAP} or {ADDED} is damaged ({error}); copy it again") from error
    sentinels = [] if pieces is None else list(_extra_ids(config | by_name, files, source, pieces))
    found: dict[str, Added] = {}
    for token in (*sentinels, *sorted(by_id, key=lambda one: one.id or 0), *special):
        if token.content:
            found.setdefault(token.content, token)
    return list(found.values())


def stated_added(added: Mapping[int, Added]) -> dict[str, Any]:
    """Return the setting of `tokenizer_config.json` that states tokens."""
    return {DECODER: {str(number): token.stated() for number, token in added.items()}}


def with_added(text: str, added: Iterable[Added], source: str, rows: int | None = None) -> str | None:
    """Return the `tokenizer.json` with further tokens; None if it has them all, or is no tokenizer.

    Args:
        text: the file.
        added: tokens, in the order of their ids.
        source: folder of the files, for error messages.
        rows: as for `within_rows`.

    Raises:
        UserError: a stated id is not the one that a token gets.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception:  # noqa: BLE001 - the library raises no other; its message comes where the file is opened
        return None
    present = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [one for one in added if one.content not in present]
    missing = within_rows(missing, tokenizer.get_vocab().keys(), rows) if missing else []
    missing = [one for one in missing if one.id is not None or tokenizer.token_to_id(one.content) is None]
    for token in missing:
        tokenizer.add_tokens([token.as_token()])
        check_id(token, tokenizer.token_to_id(token.content), source)
    return tokenizer.to_str(pretty=False) if missing else None


def with_ids(added: Iterable[Added], known: Mapping[str, int], source: str) -> list[Added]:
    """Return the tokens with their ids: those of known tokens, and the next ones.

    Raises:
        UserError: a stated id is another one.
    """
    found, following = list[Added](), max(known.values(), default=-1) + 1
    for token in added:
        number = known.get(token.content, following)
        following = max(following, number + 1)
        check_id(token, number, source)
        found.append(token._replace(id=number))
    return found


def check_id(token: Added, number: int | None, source: str) -> None:
    """Check the id that a token gets.

    Raises:
        UserError: its file states another one.
    """
    if token.id is not None and token.id != number:
        raise UserError(
            f"{source}/{token.file} gives the token {token.content[:40]!r} the id {token.id}, but by the tokens before "
            f"it the id is {number}; copy the folder again, or add tokens for the ids between"
        )


def within_rows(added: Iterable[Added], known: Set[str], rows: int | None) -> list[Added]:
    """Leave out new special tokens for which a model has no row: no text has them, and many folders state such."""
    found, count = list[Added](), len(known)
    for token in added:
        new = token.content not in known
        if not (new and token.special and rows is not None and count >= rows):
            found.append(token)
            count += new
    return found


def _extra_ids(config: Mapping[str, Any], files: Mapping[str, bytes], source: str, pieces: int) -> Iterator[Added]:
    """Yield the sentinels of T5's class: `<extra_id_0>` has the last id."""
    given = config.get("tokenizer_class")
    kind = _json(files, MODEL_CONFIG, source).get("model_type") if given is None else None
    if "extra_ids" not in config and given not in T5_CLASSES and kind not in T5_TYPES:
        return
    count = config.get("extra_ids", EXTRA_IDS)
    if type(count) is not int or not 0 <= count <= MAX_EXTRA_IDS:
        raise UserError(f"{source}/{CONFIG}: extra_ids is {str(count)[:40]}; expected a number up to {MAX_EXTRA_IDS:,}")
    for place in range(count):
        yield Added(f"<extra_id_{count - 1 - place}>", pieces + place, CONFIG)


def _special(config: Mapping[str, Any]) -> Iterator[Added]:
    """Yield the special tokens that a configuration names."""
    for name in NAMED:
        if config.get(name) is not None:
            yield _token(config[name], CONFIG, None)
    for name in LISTS:
        listed = config.get(name) or []
        for one in listed.values() if isinstance(listed, dict) else listed:
            yield _token(one, CONFIG, None)


def _token(value: Any, file: str, number: int | None) -> Added:
    """Parse a token: its text, or an object with its properties. One that is only named is special."""
    if isinstance(value, str):
        return Added(value, number, file)
    if not isinstance(value["content"], str):
        raise TypeError(f"a token has the content {value['content']!r}")
    given = {name: bool(value[name]) for name in PROPERTIES if name in value}
    special = number is None or given.pop("special", False)
    return Added(value["content"], number, file, **given | {"special": special})


def _json(files: Mapping[str, bytes], name: str, source: str) -> dict[str, Any]:
    """Read a file; empty if there is none."""
    try:
        found = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError) as error:
        if name == MODEL_CONFIG:  # which says much else; its message comes where the model is read
            return {}
        raise UserError(f"{source}/{name} is not JSON: {error}; copy it again") from error
    if not isinstance(found, dict):
        raise UserError(f"{source}/{name} is no JSON object; copy it again")
    return found
