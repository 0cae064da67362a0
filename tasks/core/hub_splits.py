"""Splits of datasets of the hub: `hf://datasets/ORG/NAME[@REV][:[CONFIG/]SPLIT]`, found as the library `datasets` does.

The card of a dataset can name the files of each split, in one configuration or several. Else names of folders, or of
files, that contain the name of a split count; or else all files are the split `train`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsspec import AbstractFileSystem
from yaml import YAMLError

from gpt2train.data.documents import CARD, DATASET_FILES, HIDDEN
from gpt2train.errors import UserError

ADDRESS = re.compile(r"(hf://datasets/[^/@:]+/[^/@:]+(?:@(?:refs/(?:convert|pr)/)?[^/:]+)?)(?::(.*?))?/?")
TRAIN = "train"
WORDS = {TRAIN: "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}
SHARD = re.compile(r"data/([^/]*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
MAX_CARD = 2**20
IGNORED = (CARD, "config.json", *DATASET_FILES)


def split_of(address: str) -> tuple[str, str] | None:
    """Return the address of a dataset and the name of its split, empty for the default; None for other addresses."""
    found = ADDRESS.fullmatch(address)
    return (found[1], found[2] or "") if found else None


def files_of_split(fs: AbstractFileSystem, root: str, name: str, kind_of: Callable[[str], str]) -> list[str]:
    """Find the files of a split of the dataset at `root`.

    The name is `SPLIT`, `CONFIG` for its split train, `CONFIG/SPLIT`, or empty for the split train. `kind_of` returns
    the suffix of a file; the data are the files with the most frequent one.

    Raises:
        UserError: the dataset has no such split, or its card is damaged.
    """
    try:
        splits, split = _splits_of_config(fs, root, name)
    except (ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{root}: its card names no configurations ({reason}); give the paths of the files") from error
    if split not in splits:
        raise UserError(f"{root} has no split {split!r}; it has {_listed(splits)}")
    found = sorted(set(splits[split]))
    kinds = Counter(map(kind_of, found))
    data = max(sorted(kinds), key=lambda kind: kinds[kind], default="")
    return [path for path in found if kind_of(path) == data]


def _splits_of_config(fs: AbstractFileSystem, root: str, name: str) -> tuple[dict[str, list[str]], str]:
    """Return the files of each split of the configuration that a name chooses, and the split that it chooses."""
    configs = _configs(fs, root)
    first, _, rest = name.partition("/")
    chosen, split = (first, rest or TRAIN) if first in configs else (_default(configs), name or TRAIN)
    if chosen is None or "/" in split:
        raise UserError(f"{root} has the configurations {_listed(configs)}; choose one by NAME:CONFIG/SPLIT")
    return _splits(fs, root, configs[chosen]), split


def _configs(fs: AbstractFileSystem, root: str) -> dict[str, Mapping[str, Any]]:
    """Return the configurations that the card names; one without settings if it names none."""
    from huggingface_hub import DatasetCard

    try:
        with fs.open(f"{root}/{CARD}", "rb") as file:
            text = file.read(MAX_CARD).decode()
        named = DatasetCard(text, ignore_metadata_errors=True).data.to_dict().get("configs")
        return {str(one["config_name"]): one for one in named} if named else {"default": {}}
    except FileNotFoundError:
        return {"default": {}}


def _default(configs: Mapping[str, Mapping[str, Any]]) -> str | None:
    if len(configs) == 1:
        return next(iter(configs))
    return next(
        (name for name, one in configs.items() if one.get("default")), "default" if "default" in configs else None
    )


def _splits(fs: AbstractFileSystem, root: str, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of each split of a configuration."""
    base = f"{root}/{str(config.get('data_dir') or '').strip('/')}".rstrip("/")
    if ".." in base.split("/"):
        raise UserError(f"{root}: its card names a folder elsewhere ({config['data_dir']}); give the paths of files")
    given = config.get("data_files")
    if given is None:
        paths = {path: path.removeprefix(f"{base}/") for path in fs.find(base) if _is_data(path, base, "**")}
        return _by_name(paths)
    given = [given] if isinstance(given, str) else given
    pairs = [(one["split"], one["path"]) if isinstance(one, dict) else (TRAIN, one) for one in given]
    found: dict[str, list[str]] = {}
    for split, patterns in pairs:
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            if "://" in pattern or ".." in pattern.split("/"):
                raise UserError(f"{root}: its card names files elsewhere ({pattern}); give the paths of the files")
            matching = fs.glob(f"{base}/{pattern}")
            found.setdefault(split, []).extend(p for p in matching if _is_data(p, base, pattern) and not fs.isdir(p))
    return found


def _by_name(paths: Mapping[str, str]) -> dict[str, list[str]]:
    """Sort files, whose names in the dataset are the values, into splits: the first rule that finds one decides."""
    found: dict[str, list[str]] = {}
    for path, inner in paths.items():
        if shard := SHARD.fullmatch(inner):
            found.setdefault(shard[1], []).append(path)
    if found:
        return found
    apart = "[-._ 0-9]"
    for part in (
        rf"(?:.*/)?(?:[^/]*{apart})?(?:%s)(?:{apart}[^/]*)?/.*",
        rf"(?:.*/)?(?:[^/]*{apart})?(?:%s){apart}[^/]*",
    ):
        for split, words in WORDS.items():
            if matching := [path for path, inner in paths.items() if re.fullmatch(part % words, inner)]:
                found[split] = matching
        if found:
            return found
    return {TRAIN: list(paths)}


def _is_data(path: str, base: str, pattern: str) -> bool:
    """Return False for a card and the like, and for hidden files that a pattern does not spell out."""
    inner = path.removeprefix(f"{base}/").split("/")
    hidden = [sum(part.startswith(HIDDEN) for part in parts) for parts in (inner, pattern.split("/"))]
    return hidden[0] == hidden[1] and (inner[-1] not in IGNORED or inner[-1] == pattern.rpartition("/")[2])


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    shown = list(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
