"""Early imports of the worker processes: what the batches of the data steps need.

On Linux they are made by the process from which the workers are forked (`tasks.core.worker_pool`): 2 s of imports, and
of loading compiled functions, for all of them, while the Prefect server starts.
"""

import contextlib
import functools
import gc
import importlib
from collections.abc import Callable

MODULES = (
    *("tasks.sources.warcs", "tasks.extract.page", "tasks.clean.step", "tasks.clean.repair"),
    *("tasks.decontaminate.step", "tasks.dedup.step", "tasks.shuffle.step", "tasks.tokenize.step"),
    *("awkward", "gigatoken", "datasketch"),
)


def detect_language() -> None:
    """Load the models of the languages, and the compiled functions."""
    from tasks.clean.language import LanguageSettings, certain_language, detect_with_langdetect, ranking

    ranking("a")
    certain_language("a", LanguageSettings())
    detect_with_langdetect("a", LanguageSettings())


def find_ngrams() -> None:
    """Load those of the decontamination."""
    from tasks.decontaminate.ngrams import NgramIndex

    NgramIndex(["a b"], ngram=2, min_ngram=2).matches("a b")


def compare_sketches() -> None:
    """Load those of the deduplication."""
    from tasks.dedup.bands import with_bands
    from tasks.dedup.minhash import count_mismatches
    from tasks.dedup.settings import DedupSettings

    count_mismatches(["a b c d e f"], with_bands(DedupSettings()))


FUNCTIONS = (detect_language, find_ngrams, compare_sketches)

loads: list[Callable[[], object]] = [functools.partial(importlib.import_module, module) for module in MODULES]
gc.disable()  # imports create no garbage, and collection takes a tenth of their time
for load in (*loads, *FUNCTIONS):
    with contextlib.suppress(Exception):  # the batch that needs it raises the error
        load()
gc.freeze()
gc.enable()
