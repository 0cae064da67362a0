"""Logistic regression on hashed n-grams, its cross-validation, and the threshold by precision.

There are far fewer texts than features, so the regression is solved for one coefficient per text (its dual form) by
Newton's method: a few systems of [votes, votes] equations, exact and without random numbers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpt2train.errors import UserError
from gpt2train.quality.features import BUCKETS, features_of, gram_matrix
from gpt2train.quality.model_file import QualityModel
from gpt2train.quality.votes import Vote
from gpt2train.store.counts import count_of

MIN_VOTES = 200
MIN_OF_A_KIND = 20  # good ones, and bad ones
FOLDS = 10
PENALTY = 0.1  # of the squared weights
NEWTON_STEPS = 50
CONVERGED = 1e-9


@dataclass(frozen=True)
class CurvePoint:
    """Effect of one threshold on the texts with votes."""

    threshold: float
    precision: float  # share of good texts among those kept
    recall: float  # share of the good texts that are kept


@dataclass(frozen=True)
class Evaluation:
    """Cross-validated quality of a model: each text is scored by a model that has not seen it."""

    good: int
    bad: int
    auc: float  # area under the ROC curve: probability that a good text has a higher score than a bad one
    auc_error: float  # its standard error (Hanley and McNeil 1982)
    curve: tuple[CurvePoint, ...]  # one point per different score, ascending


def train(votes: Sequence[Vote]) -> tuple[QualityModel, Evaluation]:
    """Train a model on all votes, and evaluate the method by cross-validation.

    The result does not depend on the order of the votes. The threshold of the model is 0.5; see `with_precision`.

    Raises:
        UserError: there are too few votes, or too few of a kind.
    """
    votes = sorted(votes, key=lambda vote: hashlib.sha256(vote.id.encode(errors="replace")).digest())
    is_good = np.array([vote.vote == "good" for vote in votes], bool)
    good, bad = int(is_good.sum()), int((~is_good).sum())
    if len(votes) < MIN_VOTES:
        raise UserError(f"{count_of(len(votes), 'vote')}: too few; give at least {MIN_VOTES}")
    if min(good, bad) < MIN_OF_A_KIND:
        raise UserError(f"{count_of(good, 'good vote')} and {bad} bad; give at least {MIN_OF_A_KIND} of each")
    features = [features_of(vote.text) for vote in votes]
    matrix = gram_matrix(features) + 1  # 1: the product of the constant feature, which is the bias
    scores = _cross_validate(matrix, is_good)
    coefficients = fit(matrix, is_good)
    weights = np.zeros(BUCKETS)
    for one, coefficient in zip(features, coefficients, strict=True):
        weights[one.buckets] += coefficient * one.values
    auc = area(scores, is_good)
    evaluation = Evaluation(good, bad, auc, area_error(auc, good, bad), curve_of(scores, is_good))
    about = {"good": good, "bad": bad, "auc": round(auc, 4)}
    return QualityModel(weights.astype(np.float16), round(float(coefficients.sum()), 6), 0.5, about), evaluation


def with_precision(model: QualityModel, evaluation: Evaluation, precision: float) -> QualityModel:
    """Set the lowest threshold at which the cross-validated precision is at least the given one.

    Raises:
        UserError: no threshold has this precision.
    """
    point = next((point for point in evaluation.curve if point.precision >= precision), None)
    if point is None:
        most = max(point.precision for point in evaluation.curve)
        raise UserError(f"no threshold has a precision of {precision:g}; the highest is {most:.3f}, ask for less")
    about = model.about | {"precision": round(point.precision, 4), "recall": round(point.recall, 4)}
    return replace(model, threshold=point.threshold, about=about)


def fit(matrix: np.ndarray, is_good: np.ndarray) -> np.ndarray:
    """Coefficients of the texts, float64 [texts], that minimise log loss + PENALTY / 2 x squared weights.

    Args:
        matrix: inner products of the texts, float64 [texts, texts].
        is_good: bool [texts].
    """
    target = is_good.astype(np.float64)
    coefficients = np.zeros(len(target))
    for _ in range(NEWTON_STEPS):
        logits = matrix @ coefficients
        probability = 1 / (1 + np.exp(-logits))
        spread = np.maximum(probability * (1 - probability), 1e-6)
        wanted = logits + (target - probability) / spread
        new = np.linalg.solve(matrix + np.diag(PENALTY / spread), wanted)
        change = float(np.abs(new - coefficients).max())
        coefficients = new
        if change < CONVERGED:
            break
    return coefficients


def area(scores: np.ndarray, is_good: np.ndarray) -> float:
    """Area under the ROC curve; equal scores count half."""
    good, bad = scores[is_good], np.sort(scores[~is_good])
    below = np.searchsorted(bad, good, "left") + np.searchsorted(bad, good, "right")
    return float(below.sum() / 2 / (len(good) * len(bad)))


def area_error(auc: float, good: int, bad: int) -> float:
    """Standard error of the area under the ROC curve (Hanley and McNeil 1982, formula 1)."""
    first, second = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = auc * (1 - auc) + (good - 1) * (first - auc * auc) + (bad - 1) * (second - auc * auc)
    return float(np.sqrt(max(variance, 0) / (good * bad)))


def curve_of(scores: np.ndarray, is_good: np.ndarray) -> tuple[CurvePoint, ...]:
    """Precision and recall at each score as the threshold, ascending."""
    thresholds = np.unique(scores)
    good, everything = np.sort(scores[is_good]), np.sort(scores)
    kept_good = len(good) - np.searchsorted(good, thresholds)
    kept = len(everything) - np.searchsorted(everything, thresholds)
    return tuple(
        CurvePoint(float(threshold), float(hits / all_kept), float(hits / len(good)))
        for threshold, hits, all_kept in zip(thresholds, kept_good, kept, strict=True)
    )


def _cross_validate(matrix: np.ndarray, is_good: np.ndarray) -> np.ndarray:
    """Probability of each text by a model of the other folds, rounded to 4 digits; each fold has its share of both."""
    folds = np.empty(len(is_good), np.int64)
    for kind in (True, False):
        members = np.flatnonzero(is_good == kind)
        folds[members] = np.arange(len(members)) % FOLDS
    scores = np.empty(len(is_good))
    for fold in range(FOLDS):
        inside = folds == fold
        coefficients = fit(matrix[np.ix_(~inside, ~inside)], is_good[~inside])
        scores[inside] = 1 / (1 + np.exp(-matrix[np.ix_(inside, ~inside)] @ coefficients))
    return np.round(scores, 4)
