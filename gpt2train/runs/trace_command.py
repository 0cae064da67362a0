"""The command `gpt2train trace`: from a training sample, or from a text, to documents and pages."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.command_line import printable
from gpt2train.errors import UserError
from gpt2train.store.counts import count_of

if TYPE_CHECKING:
    from gpt2train.runs.text_trace import PlaceDetails, TextTrace, TextTracer
    from gpt2train.runs.trace import Trace

MAX_SHOWN = 10  # steps or values on one line


def trace(
    *,
    sample: int | None = None,
    text: str | None = None,
    data: Path | None = None,
    run: Path | None = None,
    split: Literal["train", "valid", "test"] = "train",
    seq_length: Annotated[int | None, Parameter(validator=Number(gte=2))] = None,
    seed: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    min_tokens: Annotated[int, Parameter(validator=Number(gte=1))] = 8,
    places: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 3,
    index: Path | None = None,
    documents: str | None = None,
    excerpt: Annotated[int, Parameter(validator=Number(gte=0))] = 300,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Trace a training sample, or the spans of a text that the training tokens repeat, back to documents and pages.

    Parameters
    ----------
    sample
        Global index of the sample, from 0: step x global batch + index in the batch.
    text
        Text whose spans are searched in the tokens, which need an index (gpt2train data index).
    data
        Output folder of the data steps, which holds tokens/; by default that of the run. With --text also the prefix
        of token files.
    run
        Run folder. It provides the sequence length and the seed, and with --text the corpora and the training steps.
    split
        Split of the tokens.
    seq_length
        Inputs of a sample, if no run is given; 1,024 by default.
    seed
        Seed of the shuffles, if no run is given; a run's default seed by default.
    min_tokens
        Length of the shortest spans of a text.
    places
        Occurrences shown of each span.
    index
        Folder of the indexes; by default token_index beside tokens/.
    documents
        Output folder or URL of the data steps in which documents are looked up; by default that of the tokens.
    excerpt
        Characters shown of each document's text in the sample, or around a span.
    json_
        Print JSON, with the whole text.
    """
    if (sample is None) == (text is None):
        raise UserError("give --sample N or --text TEXT")
    if sample is not None:
        from gpt2train.runs.trace import trace as trace_sample

        _show_sample(trace_sample(data, sample, split=split, run=run, context=seq_length, seed=seed), excerpt, json_)
        return
    if seq_length is not None or seed is not None:
        raise UserError("--seq-length and --seed belong to --sample; leave them out with --text")
    from gpt2train.runs.text_trace import TextTracer, find_source

    place = run or data
    if place is None or (run and data):
        raise UserError("give --run, a run folder, or --data, an output folder or a prefix of token files")
    tracer = TextTracer(find_source(place, split), index, documents)
    assert text is not None
    show(tracer, tracer.trace_text(text, min_tokens, places), excerpt, json_)


def _show_sample(found: "Trace", excerpt: int, as_json: bool) -> None:
    """Print a sample and its documents."""
    if as_json:
        print(json.dumps(asdict(found), ensure_ascii=False, indent=1))
        return
    order = "order of the file" if found.seed is None else f"epoch {found.epoch}, seed {found.seed}"
    documents = count_of(len(found.parts), "document")
    print(f"{found.split} sample {found.sample:,} ({order}): {found.context} + 1 tokens of {documents}")
    for part in found.parts:
        print(f"\n{printable(part.url, keep='')}")
        print(f"  id {part.doc_id}, its tokens {part.start:,}-{part.end:,} of {part.tokens:,}")
        if part.text is not None:
            shown = printable(" ".join(part.text.split()))
            print(f"  | {shown[:excerpt]}{'…' if len(shown) > excerpt else ''}")
        for location in part.found:
            print(f"  {location}")


def show(tracer: "TextTracer", found: "TextTrace", excerpt: int, as_json: bool) -> None:
    """Print the spans of a text with the details of their places."""
    if as_json:
        print(json.dumps(as_values(tracer, found), ensure_ascii=False, indent=1))
        return
    spans = f"{count_of(len(found.spans), 'span')} of at least {found.min_tokens} tokens"
    of_text = f"{count_of(found.tokens, 'token')}, {found.covered:,} of them"
    print(f"{of_text} in {spans} that occur in {found.indexed_tokens:,} tokens")
    for span in found.spans:
        times = "once" if span.count == 1 else f"{span.count:,} times"
        print(f"\ntokens {span.start:,}-{span.end:,}, {times}: {_line(span.text)!r}")
        for place in span.places:
            for line in _details(tracer.details(place.corpus, place.position, span.end - span.start), excerpt):
                print(f"  {line}")


def as_values(tracer: "TextTracer", found: "TextTrace") -> dict[str, Any]:
    """Convert a trace to JSON-serialisable values, with the details of each place."""
    plain = asdict(found)
    for span, values in zip(found.spans, plain["spans"], strict=True):
        details = (tracer.details(place.corpus, place.position, span.end - span.start) for place in span.places)
        values["places"] = list(map(asdict, details))
    return plain


def _details(found: "PlaceDetails", excerpt: int) -> list[str]:
    place, record = found.place, found.record
    lines = [printable(place.url or f"document {place.document:,} of corpus {place.corpus}, page unknown", keep="")]
    about = [f"id {place.doc_id}"] if place.doc_id else []
    about += [f"its tokens {place.start:,}- of {found.tokens:,}"]
    if record and record.date:
        about.append(f"date {printable(record.date, keep='')}")
    if record and record.title:
        about.append(f"title {_line(record.title)!r}")
    lines.append("  " + ", ".join(about))
    half = excerpt // 2
    before, after = _line(found.before), _line(found.after)
    lines.append(f"  | {before[-half:] if half else ''} [{_line(found.text)}] {after[:half]}")
    for step in record.steps if record else ():
        values = ", ".join(f"{name} {_line(str(value))}" for name, value in list(step.values.items())[:MAX_SHOWN])
        lines.append(f"  {step.step}/{step.file} row {step.row}: kept{'; ' if values else ''}{values}")
        lines += [f"    of {name} at the commit {commit}" for name, commit in step.commits.items()]
        lines += [f"    cut: {_line(json.dumps(cut, ensure_ascii=False))}" for cut in step.cuts]
    if record and record.page:
        lines.append(f"  {record.page}")
    if found.reading is not None:
        steps = ", ".join(f"{step:,}" for step in found.reading.steps[:MAX_SHOWN])
        more = ", …" if found.reading.count > MAX_SHOWN else ""
        lines.append(f"  read by {found.reading.count:,} training steps{': ' if steps else ''}{steps}{more}")
    return lines


def _line(text: str) -> str:
    """Printable text on one line."""
    return printable(" ".join(text.split()), keep="")
