"""Steps that can be done again from their manifests: the call of each, with its settings and inputs restored."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gpt2train.settings import Settings
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from gpt2train.store.output import Output
from tasks.boilerplate.settings import BoilerplateSettings
from tasks.boilerplate.step import boilerplate
from tasks.clean.settings import CleanSettings
from tasks.clean.step import clean
from tasks.cloze.settings import ClozeSettings
from tasks.cloze.step import CLOZE, cloze
from tasks.core.forgotten import FORGOTTEN
from tasks.core.input_files import InputFile, find_inputs
from tasks.core.runner import Runner
from tasks.data_steps.registry import DATA_STEPS
from tasks.data_steps.step import MIN_TOKENS, function_of
from tasks.decontaminate.settings import DecontaminateSettings
from tasks.decontaminate.step import decontaminate
from tasks.dedup.settings import DedupSettings
from tasks.dedup.step import dedup
from tasks.extract.settings import ExtractSettings
from tasks.extract.step import ENGINE_VERSIONS, extract
from tasks.outputs.verify.redo import NotRedoneError
from tasks.shuffle.settings import ShuffleSettings
from tasks.shuffle.step import shuffle
from tasks.sources.index import PLACES
from tasks.sources.warcs import ArchiveConsent, WarcSettings, warcs
from tasks.sources.webpages import WebpagesSettings, webpages
from tasks.substrings.settings import SubstringSettings
from tasks.substrings.step import substrings
from tasks.tokenize.settings import TokenizeSettings
from tasks.tokenize.step import tokenize
from tasks.tokenizer.settings import TokenizerSettings
from tasks.tokenizer.step import tokenizer

# By output, manifest of the step and runner. The folder is for steps that only read files of the user.
Call = Callable[[Output, Manifest, Runner, Folder], Manifest]


class Redoable(NamedTuple):
    """Step that can be done again."""

    call: Call
    whole: bool = False  # True if its batches read each other's files, so that it is done as a whole or not at all


# Reason for which each other step is checked by its hashes alone.
BY_HASHES = {
    "blacklist": "the URL lists are not kept",
    "discover": "sites are not requested again",
    "commoncrawl": "pages are not requested again",
    "download": "pages are not requested again",
    "texts": "the texts are not kept",
    "ready_tokens": "the token files are not kept",
    "samples": "the rows of the task are not kept",
    "train": "a training is not run again",
    "merge": "follows from a training",
    "evaluate": "follows from a training",
    "task_scores": "follows from a training",
    "report": "a page for readers",
}


def redoable(step: str) -> Redoable:
    """Return how a step is done again.

    Raises:
        NotRedoneError: It is not.
    """
    if step in STEPS:
        return STEPS[step]
    if step in {name for name, _ in DATA_STEPS.items()}:
        return Redoable(_data_step)
    raise NotRedoneError(BY_HASHES.get(step, "no such step in this release; is its plug-in installed?"))


def _plain(step: Callable[..., Manifest], settings: type[Settings], source: str = "documents") -> Call:
    """Return the call of a step that reads one other step, and whose parameters are its settings."""

    def call(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
        return step(output.root, output.input(made, source), settings.model_validate(made.parameters), runner)

    return call


def _clean(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
    if files := sorted(name.removeprefix("filter ") for name in made.inputs if name.startswith("filter ")):
        raise NotRedoneError(f"the files of its filters are not kept: {', '.join(files)}")
    settings = CleanSettings.model_validate(made.parameters)
    bpe, documents = output.input_if_any(made, "tokenizer"), output.input(made, "extract")
    origin = output.input(documents, "documents") if documents.step == "boilerplate" else documents
    return clean(output.root, documents, settings, runner, bpe, origin)


def _data_step(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
    step = DATA_STEPS[made.step]
    settings = step.settings.model_validate({k: v for k, v in made.parameters.items() if k != MIN_TOKENS})
    bpe = output.input_if_any(made, "tokenizer")
    return function_of(step)(output.root, output.input(made, "documents"), settings, runner=runner, tokenizer=bpe)


def _decontaminate(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
    settings = DecontaminateSettings.model_validate({k: v for k, v in made.parameters.items() if k != "exempt"})
    sets = [name.removeprefix("evaluation:") for name in made.inputs if name.startswith("evaluation:")]
    drawn = next((one for one in output.manifests.values() if one.step == "cloze"), None)
    own = [(name, (output.root / drawn.folder).location(CLOZE)) for name in sets if drawn]  # if not, its hash differs
    bpe = output.input_if_any(made, "tokenizer")
    return decontaminate(output.root, output.input(made, "clean"), own, settings, runner, tokenizer=bpe)


def _extract(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
    # The first version of the engine trafilatura named neither itself nor its version.
    parameters = {"engine": "trafilatura", "engine_version": 1, **made.parameters}
    version = parameters.pop("engine_version")
    if version != ENGINE_VERSIONS[parameters["engine"]]:
        raise NotRedoneError(f"its texts are of version {version} of the engine {parameters['engine']}")
    rules = parameters.pop("wanted", None)
    cleaning = None
    if rules:
        parameters["prefilter_min_prob"] = rules["share"]
        cleaning = CleanSettings.model_validate(
            {"min_tokens": rules["min_tokens"], "language": {"keep": rules["languages"]}}
        )
    settings = ExtractSettings.model_validate(parameters)
    return extract(output.root, output.input(made, "download"), settings, runner, clean=cleaning)


def _substrings(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
    parameters = {**made.parameters, "enabled": True}
    least = parameters.pop("min_tokens", 0)
    settings, documents = SubstringSettings.model_validate(parameters), output.input(made, "documents")
    bpe = output.input_if_any(made, "tokenizer")
    return substrings(output.root, documents, settings, runner, tokenizer=bpe, min_tokens=least)


def _tokenize(output: Output, made: Manifest, runner: Runner, _: Folder) -> Manifest:
    settings = TokenizeSettings.model_validate({k: v for k, v in made.parameters.items() if k != "prefix"})
    settings = settings.model_copy(update={"prepend_bos": "prefix" in made.parameters})
    documents, bpe = output.input(made, "documents"), output.input(made, "tokenizer")
    return tokenize(output.root, documents, bpe, settings, runner)


def _tokenizer(output: Output, made: Manifest, runner: Runner, scratch: Folder) -> Manifest:
    if made.parameters.get("name") != "train":
        raise NotRedoneError("its files were copied; the hashes of the originals are in its manifest")
    return _plain(tokenizer, TokenizerSettings)(output, made, runner, scratch)


def _warcs(output: Output, made: Manifest, runner: Runner, scratch: Folder) -> Manifest:
    if made.parameters.get("blacklist"):
        raise NotRedoneError("the blocklists are not kept")
    _copy_forgotten(output, scratch)
    parameters = dict(made.parameters)
    signals = parameters.pop("consent", None)
    consent = ArchiveConsent.model_validate(signals) if signals else None
    settings = WarcSettings.model_validate(parameters)
    return warcs(scratch, _files(output, made), settings, runner, consent=consent)


def _webpages(output: Output, made: Manifest, runner: Runner, scratch: Folder) -> Manifest:
    _copy_forgotten(output, scratch)
    return webpages(scratch, _files(output, made), WebpagesSettings.model_validate(made.parameters), runner)


def _copy_forgotten(output: Output, scratch: Folder) -> None:
    """Copy the list of forgotten URLs, which the steps read in the folder that they write."""
    if output.root.size(FORGOTTEN) is not None:
        scratch.write_bytes(FORGOTTEN, output.root.read_bytes(FORGOTTEN))


def _files(output: Output, made: Manifest) -> list[InputFile]:
    """Return the user's files of an index, by the locations that the last run wrote."""
    places = output.root / made.folder / PLACES
    locations: list[Any] = [json.loads(places.read_bytes(name)) for name in places.files()]
    return [file for batch in locations for file in find_inputs([*batch.values()], f"the files of {made.step}", ())]


STEPS = {
    "boilerplate": Redoable(_plain(boilerplate, BoilerplateSettings), whole=True),
    "clean": Redoable(_clean),
    "cloze": Redoable(_plain(cloze, ClozeSettings, "clean"), whole=True),
    "decontaminate": Redoable(_decontaminate),
    "dedup": Redoable(_plain(dedup, DedupSettings), whole=True),
    "extract": Redoable(_extract),
    "shuffle": Redoable(_plain(shuffle, ShuffleSettings), whole=True),
    "substrings": Redoable(_substrings, whole=True),
    "tokenize": Redoable(_tokenize, whole=True),
    "tokenizer": Redoable(_tokenizer, whole=True),
    "warcs": Redoable(_warcs),
    "webpages": Redoable(_webpages),
}
