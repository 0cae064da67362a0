"""Internals of trafilatura and justext that the extraction uses, in one place for an upgrade.

The other modules of this package import from these libraries only what is documented, and the rest from here. The
patches are held against the unpatched libraries by `tests/tasks/extract/test_trafilatura_patches.py` and
`test_trafilatura_fallbacks.py`, expression by expression and text by text.

| internal | breaks when |
| --- | --- |
| functions in `REPLACED` | trafilatura or justext calls them by another name, with other arguments, or through another module: the patch is then without effect, or fails |
| `_BLOCK_ELEMS`, `SANITIZED_XPATH`, `ESCALATION_PAGE_SHARE` | the fallbacks compare other elements or shares |
| lists of `xpaths`, `BASIC_CLEAN_XPATH` | an expression asks for more than the tag and the attributes of an element |
| `utils.HTML_PARSER` | pages are parsed by another parser |
"""  # noqa: E501 (a row of a table)
# ruff: noqa: F401 (imported for the other modules)

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import justext.core
from justext.core import define_stoplist, revise_paragraph_classification
from justext.paragraph import Paragraph
from trafilatura import core, external, htmlprocessing, main_extractor, utils, xml, xpaths
from trafilatura.baseline import _BLOCK_ELEMS as BLOCK_ELEMENTS
from trafilatura.baseline import html2txt
from trafilatura.core import ESCALATION_PAGE_SHARE
from trafilatura.external import SANITIZED_XPATH, compare_extraction, justext_rescue
from trafilatura.htmlprocessing import delete_by_link_density, link_density_test
from trafilatura.main_extractor import extract_content, prune_unwanted_sections
from trafilatura.settings import BASIC_CLEAN_XPATH

TESTED = {"trafilatura": ">=2.3.1,<2.4", "justext": ">=3.0.2,<4"}  # as in pyproject.toml

baseline = importlib.import_module("trafilatura.baseline")  # `trafilatura.baseline` is the function
# Name -> the module in which it is replaced, which is the one that calls it.
REPLACED: Mapping[str, Any] = {
    "load_html": core,
    "_prepare_tree": core,
    "_extract_and_compare": core,
    "html2txt": core,
    "justext_rescue": external,
    "revise_paragraph_classification": external,
    "prune_unwanted_sections": main_extractor,
    "delete_by_link_density": main_extractor,
    "BASIC_CLEAN_XPATH": baseline,
    "link_density_test": htmlprocessing,
    "sanitize": xml,
    "Paragraph": justext.core,
    "define_stoplist": justext.core,
}


@contextlib.contextmanager
def replaced(by_name: Mapping[str, Any]) -> Iterator[None]:
    """Replace every name of `REPLACED` in its module; put the original ones back at the end."""
    assert by_name.keys() == REPLACED.keys()
    plain = {name: getattr(module, name) for name, module in REPLACED.items()}
    try:
        for name, value in by_name.items():
            setattr(REPLACED[name], name, value)
        yield
    finally:
        for name, value in plain.items():
            setattr(REPLACED[name], name, value)
