"""The command `gpt2train compare-data`."""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gpt2train.store.counts import count_of


def compare_data(
    a: Path,
    b: Path,
    /,
    *,
    output: Path = Path("out/compare"),
    a_set: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    b_set: Annotated[list[str] | None, Parameter(negative=(), consume_multiple=True)] = None,
    names: tuple[str, str] = ("A", "B"),
    heldout: Annotated[list[Path], Parameter(negative=(), consume_multiple=True)] | None = None,
    tasks: Annotated[list[str], Parameter(negative=(), consume_multiple=True)] | None = None,
    data: Path = Path(),
    limit: Annotated[int, Parameter(validator=Number(gte=2))] = 500,
    seeds: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 8,
    difference: Annotated[float, Parameter(validator=Number(gt=0))] = 0.02,
    tokens: Annotated[int, Parameter(validator=Number(gte=1))] | None = None,
    epochs: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 3,
    proxy: Literal["micro", "small"] = "small",
    json_key: str = "text",
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 2,
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
    names
        Names of the corpora on the page.
    heldout
        Files or folders of held-out documents, a set each; by default drawn from both corpora in equal parts.
    tasks
        Tasks of gpt2train evaluate, compared by the bits per byte of the right answer.
    data
        Folder with the data of the tasks.
    limit
        Items of each task.
    seeds
        Pairs of trainings; each has documents of its own.
    difference
        Difference in bits per byte to plan for.
    tokens
        Training tokens of each model; by default those of the proxy, or what the smaller corpus has.
    epochs
        Times that a training reads its documents; a model that reads them once hardly minds copies.
    proxy
        Size of the models.
    json_key
        Key of the text in JSON lines, column in Parquet.
    jobs
        Trainings at a time, of one thread each.
    plan
        Run the pilot only.
    json_
        Print the result as JSON.
    """
    from gpt2train.compare.comparison import Comparison, Request
    from gpt2train.compare.documents import MAX_BYTES
    from gpt2train.compare.flow_arms import prepare_arms
    from gpt2train.compare.page import comparison_page
    from gpt2train.store.files import write_atomic

    def report(line: str) -> None:
        if not json_:
            print(line, flush=True)

    comparison = Comparison(
        Request(
            corpora=prepare_arms((a, b), (a_set or (), b_set or ()), output, report),
            output=output,
            names=names,
            heldout=tuple(heldout or ()),
            tasks=tuple(tasks or ()),
            data=data,
            limit=limit,
            seeds=seeds,
            difference=difference,
            tokens=tokens,
            epochs=epochs,
            proxy=proxy,
            json_key=json_key,
            jobs=jobs,
        )
    )
    for corpus in comparison.corpora:
        if corpus.over_limit:
            report(
                f"{corpus.name}: its texts have more than {MAX_BYTES >> 20} MiB in UTF-8; "
                f"left out, chosen by a hash: {count_of(corpus.over_limit, 'document')}"
            )
        if corpus.skipped:
            report(f"{corpus.name}: left out: {count_of(corpus.skipped, 'row')} without a text under {json_key!r}")
        if corpus.dropped:
            report(f"{corpus.name}: left out: {count_of(corpus.dropped, 'document')} with text of a held-out file")
    found = comparison.pilot(lambda line: None)
    report(
        f"pilot: seeds differ by {found.deviation:.4f} bits per byte (standard deviation of the difference); "
        f"{difference:g} needs {found.needed or 'more than 100'} seeds; {seeds} seeds find {found.detectable:.4f} "
        f"and take about {found.minutes:.1f} minutes"
    )
    if plan:
        return
    result = comparison.run(report)
    write_atomic(output / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    write_atomic(output / "page.html", comparison_page(result).encode())
    print(json.dumps(result) if json_ else f"{result['verdict']}\npage: {output / 'page.html'}")
