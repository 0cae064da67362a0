"""The command `gpt2train data train-quality`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

PRECISION = 0.9


def train_quality(
    votes: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    output: Path,
    precision: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = PRECISION,
) -> None:
    """Train a quality model from votes, as the page of `gpt2train data label` does.

    Parameters
    ----------
    votes
        Files of votes. The last vote on a document counts.
    output
        File of the model, for `clean.filters.quality.model`.
    precision
        Share of good documents among those that the model keeps, by cross-validation.
    """
    from gpt2train.quality.model_file import check_model_path, write_model
    from gpt2train.quality.training import train, with_precision
    from gpt2train.quality.votes import read_votes

    check_model_path(output)  # before the training, which takes minutes
    model, evaluation = train(read_votes(votes))
    model = with_precision(model, evaluation, precision)
    write_model(output, model)
    print(f"{evaluation.good} good and {evaluation.bad} bad votes")
    print(f"AUC {evaluation.auc:.3f} ± {evaluation.auc_error:.3f}, cross-validated")
    print(
        f"threshold {model.threshold:g}: precision {model.about['precision']:.3f}, recall {model.about['recall']:.3f}"
    )
    print(f"model: {output}")
