"""Filter by the educational value of a text, as FineWeb-Edu's classifier scores it; the user brings the model."""

import functools
import importlib.util
from typing import Any, NamedTuple

from gpt2train.errors import UserError
from gpt2train.extras import needs_extra
from gpt2train.settings import Settings
from tasks.clean.filters.registry import FilterModel, LocalModel, TextFilter, register_filter
from tasks.clean.filters.verdict import Rejection

SUFFIXES = (".json", ".model", ".safetensors", ".txt")
FLAG = "--clean.filters.fineweb_edu.model"
LONG = "word " * 10_000  # longer than the positions of every model


class FineWebEduSettings(Settings):
    """Filter by FineWeb-Edu's classifier (Penedo et al. 2024) or another model of transformers with one score."""

    model: str | None = None
    """Local folder of the model and its tokenizer, as transformers saves them, with weights in safetensors; turns the
    filter on (needs `pip install 'gpt2train[edu]'`)."""
    threshold: float = 2.5
    """Minimum score. FineWeb-Edu rounds the scores and keeps those from 3 on."""

    @property
    def enabled(self) -> bool:
        """True if there is a model."""
        return self.model is not None


class Classifier(NamedTuple):
    """An opened model."""

    tokenizer: Any
    network: Any
    limit: int  # number of tokens that it reads; the rest of a text has no influence


def fineweb_edu_score(text: str, settings: FineWebEduSettings, model: LocalModel) -> Rejection | None:
    """Rejection of a text with a low score; reason: `fineweb_edu_low`."""
    score = score_of(text, model)
    if score >= settings.threshold:
        return None
    return Rejection("fineweb_edu_low", f"{score:.3f}, at least {settings.threshold:g} expected")


def score_of(text: str, model: LocalModel) -> float:
    """Score of a text, rounded to 3 digits after the point.

    One text at a time on one thread: padding and the number of threads change the last bits of a score.
    """
    import torch

    opened = _opened(model)
    inputs = opened.tokenizer(text, truncation=True, max_length=opened.limit, return_tensors="pt")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return round(opened.network(**inputs).logits.item(), 3)
    finally:
        torch.set_num_threads(threads)


def check_model(model: LocalModel, settings: FineWebEduSettings) -> None:
    """Check that the folder has a model with one score.

    Raises:
        UserError: It has not, or transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise needs_extra(FLAG, "edu")
    try:
        score_of(LONG, model)
    except UserError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{model.path} cannot be read as a model of transformers: {type(error).__name__}: {first}; give the folder "
            f"of a classifier, with its tokenizer and weights in safetensors, with {FLAG}"
        ) from error


@functools.lru_cache(maxsize=1)
def _opened(model: LocalModel) -> Classifier:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    own = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path, **own)
    network, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        model.path, **own, use_safetensors=True, output_loading_info=True
    )
    if absent := sorted(loading["missing_keys"]):  # transformers fills them with random numbers
        raise UserError(f"{model.path} has no weights {absent[0]}; give the folder of a classifier with {FLAG}")
    if network.config.num_labels != 1:
        raise UserError(
            f"{model.path} has {network.config.num_labels} labels; give a classifier with one score with {FLAG}"
        )
    limits = (tokenizer.model_max_length, getattr(network.config, "max_position_embeddings", None))
    limit = min(limit for limit in limits if limit is not None)
    return Classifier(tokenizer, network.float().eval(), limit)


register_filter(
    "fineweb_edu",
    TextFilter(
        FineWebEduSettings,
        fineweb_edu_score,
        order=570,
        file=FilterModel("model", check_model, SUFFIXES),
        packages=lambda settings: ("tokenizers", "torch", "transformers"),
    ),
)
