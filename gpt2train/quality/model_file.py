"""File of a quality model: safetensors, so that reading it runs no code."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import load, save

from gpt2train.errors import UserError
from gpt2train.quality.features import BUCKETS, features_of
from gpt2train.store.files import write_atomic

FORMAT = "gpt2train quality model 3"  # raised when `features_of` changes
MAX_BYTES = 1 << 24
REMEDY = "give a file that gpt2train data label or train-quality wrote"


@dataclass(frozen=True, eq=False)
class QualityModel:
    """Linear model of the probability that a text is good."""

    weights: np.ndarray  # float16 [BUCKETS]
    bias: float
    threshold: float  # probability from which on a text is kept
    about: dict[str, Any]  # votes, area under the curve, precision and recall at the threshold

    def score(self, text: str) -> float:
        """Probability that a text is good, rounded to 4 digits, so that it is the same on every machine."""
        found = features_of(text)
        logit = float(self.weights[found.buckets].astype(np.float64) @ found.values) + self.bias
        return round(float(1 / (1 + np.exp(-logit))), 4)


def to_bytes(model: QualityModel) -> bytes:
    """Content of the file; equal models give equal bytes."""
    header = {"format": FORMAT, "bias": model.bias, "threshold": model.threshold, "about": model.about}
    # One key: safetensors writes several in an order that varies.
    return bytes(save({"weights": model.weights}, {"quality": json.dumps(header, sort_keys=True)}))


def from_bytes(content: bytes, name: str) -> QualityModel:
    """Read a model from the content of its file.

    Raises:
        UserError: it is no file of a quality model, or one of another version.
    """
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("it is too large")
        header = _header(content)
        weights = load(content)["weights"]
        if header["format"] != FORMAT:
            raise UserError(f"{name} is of another version ({header['format']}); train the model again")
        if weights.dtype != np.float16 or weights.shape != (BUCKETS,) or not np.isfinite(weights).all():
            raise ValueError("wrong weights")
        model = QualityModel(weights, float(header["bias"]), float(header["threshold"]), dict(header["about"]))
        if not (np.isfinite(model.bias) and 0 <= model.threshold <= 1):
            raise ValueError("wrong threshold")
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{name} is no quality model; {REMEDY}") from error
    return model


def check_model_path(path: Path) -> None:
    """Check that the file of a model can be written to a path, or replaces that of another one.

    Raises:
        UserError: the path is a folder or has another file, such as the votes.
    """
    try:
        _header(path.read_bytes())
    except IsADirectoryError as error:
        raise UserError(f"{path} is a folder; give --output as a file, such as {path / 'model.safetensors'}") from error
    except OSError:  # there is none; of another error the write says more
        pass
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} already exists and is no quality model; give another --output") from error


def write_model(path: Path, model: QualityModel) -> None:
    """Write the file of a model, or replace that of another one.

    Raises:
        UserError: the path has another file, such as the votes, or cannot be written.
    """
    check_model_path(path)
    write_atomic(path, to_bytes(model))


def _header(content: bytes) -> dict[str, Any]:
    size = int.from_bytes(content[:8], "little")  # of the header; the library reads metadata from a path only
    return dict(json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["quality"]))


@functools.lru_cache(maxsize=2)
def cached_model(content: bytes) -> QualityModel:
    """Read a model from a content that was checked; the last ones are kept."""
    return from_bytes(content, "the quality model")
