"""The command `gpt2train compare-data`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpt2train.compare.request import Request
from gpt2train.store.counts import count_of

if TYPE_CHECKING:
    from gpt2train.compare.documents import Corpus

DEFAULTS = Request()


def compare_data(
    a: Path,
    b: Path,
    /,
    *,
    output: Path = Path("out/compare"),
    a_set: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    b_set: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    request: Annotated[Request, Parameter(name="*")] = DEFAULTS,
    plan: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Train small models on equal numbers of tokens of two corpora, and say which corpus is better on held-out text.

    A pilot says first how many seeds the difference needs and how long the comparison takes. The same command resumes.

    Parameters
    ----------
    a
        Output folder of a data flow, prefix of token files, a file or folder of documents, or a settings file
        (.toml) of flows.dataprep, which is run first.
    b
        The other corpus.
    output
        Folder of page.html, result.json and the trainings.
    a_set
        Settings of the data flow of A as KEY=VALUE, over those of its settings file.
    b_set
        Settings of the data flow of B; steps that both flows share run once.
    plan
        Run the pilot only.
    json_
        Print the result as JSON.
    """
    from gpt2train.compare.comparison import Comparison
    from gpt2train.compare.flow_arms import prepare_arms
    from gpt2train.compare.page import comparison_page
    from gpt2train.store.files import write_atomic

    def report(line: str) -> None:
        if not json_:
            print(line, flush=True)

    comparison = Comparison(prepare_arms((a, b), (a_set or (), b_set or ()), output, report), output, request)
    for corpus in comparison.corpora:
        for line in _left_out(corpus, request.json_key):
            report(f"{corpus.name}: {line}")
    found = comparison.pilot(lambda line: None)
    report(
        f"pilot: seeds differ by {found.deviation:.4f} bits per byte (standard deviation of the difference); "
        f"{request.difference:g} needs {found.needed or 'more than 100'} seeds; {request.seeds} seeds find "
        f"{found.detectable:.4f} and take about {found.minutes:.1f} minutes"
    )
    if plan:
        return
    result = comparison.run(report)
    write_atomic(output / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    write_atomic(output / "page.html", comparison_page(result).encode())
    print(json.dumps(result) if json_ else f"{result['verdict']}\npage: {output / 'page.html'}")


def _left_out(corpus: "Corpus", json_key: str) -> Iterator[str]:
    """Yield what a comparison does not read of a corpus."""
    from gpt2train.compare.documents import MAX_BYTES

    if corpus.over_limit:
        documents = count_of(corpus.over_limit, "document")
        yield f"its texts have more than {MAX_BYTES >> 20} MiB in UTF-8; left out, chosen by a hash: {documents}"
    if corpus.skipped:
        yield f"left out: {count_of(corpus.skipped, 'row')} without a text under {json_key!r}"
    if corpus.dropped:
        yield f"left out: {count_of(corpus.dropped, 'document')} with text of a held-out file"
