"""Options of a comparison, apart from its code so that `--help` does not load torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number


@dataclass(frozen=True)
class Request:
    """A comparison as it is asked for."""

    names: tuple[str, str] = ("A", "B")
    """Names of the corpora on the page."""
    heldout: Annotated[tuple[Path, ...], Parameter(negative=(), consume_multiple=True, show_default=False)] = ()
    """Files or folders of held-out documents, a set each; by default drawn from both corpora in equal parts."""
    tasks: Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True, show_default=False)] = ()
    """Tasks of gpt2train evaluate, compared by the bits per byte of the right answer."""
    data: Path = Path()
    """Folder with the data of the tasks."""
    limit: Annotated[int, Parameter(validator=Number(gte=2))] = 500
    """Items of each task."""
    seeds: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 8
    """Pairs of trainings; each has documents of its own."""
    difference: Annotated[float, Parameter(validator=Number(gt=0))] = 0.02
    """Difference in bits per byte to plan for."""
    tokens: Annotated[int, Parameter(validator=Number(gte=1))] | None = None
    """Training tokens of each model; by default those of the proxy, or what the smaller corpus has."""
    epochs: Annotated[int, Parameter(validator=Number(gte=1, lte=64))] = 3
    """Times that a training reads its documents; a model that reads them once hardly minds copies."""
    proxy: Literal["micro", "small"] = "small"
    """Size of the models."""
    json_key: str = "text"
    """Key of the text in JSON lines, column in Parquet."""
    jobs: Annotated[int, Parameter(validator=Number(gte=1))] = 2
    """Trainings at a time, of one thread each."""
