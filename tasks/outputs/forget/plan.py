"""Plan of a removal: what is rewritten, what is removed and made again, and what the trainings have read."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from gpt2train.data.suffix_index import FOLDER as TOKEN_INDEX
from gpt2train.errors import RunError, UserError
from gpt2train.settings import Record
from gpt2train.store.folder import Folder
from gpt2train.store.inner_path import InnerPath
from gpt2train.store.manifest import MANIFEST, Manifest
from gpt2train.store.output import COPIES, IDENTITY, Output
from tasks.core.forgotten import Forgotten, domain_hash, read_forgotten, url_hash, url_key
from tasks.outputs.forget.corpus import RUNS, SOURCES, Found, find_pages, unfinished
from tasks.outputs.forget.scan import Trace, scan
from tasks.outputs.forget.targets import domain_of, selection_of
from tasks.outputs.forget.token_text import forms_in_tokens
from tasks.outputs.forget.training import RunReading, find_runs, read_by


class Rewriting(Record):
    """A step that takes pages from outside."""

    folder: InnerPath
    inputs: dict[str, InnerPath]
    """Folders of those of its inputs, and of the steps that it read besides, that are such steps, by name."""


class Removal(Record):
    """A removal, complete enough to be repeated after a kill."""

    targets: tuple[str, ...]
    wanted: Forgotten  # the targets as a list, without meanings that no page has
    missing: tuple[str, ...] = ()  # targets without a page here; they are listed all the same
    found: Found = Found()
    rewritten: tuple[Rewriting, ...] = ()  # steps that take pages from outside, each after its inputs
    removed: tuple[InnerPath, ...] = ()  # folders of what the flow makes again of them, and of interrupted steps
    traces: tuple[Trace, ...] = ()  # other files with a text or URL of the pages
    runs: tuple[RunReading, ...] = ()
    mirrors: tuple[str, ...] = ()  # pages with the same words that are not removed
    delete_checkpoints: bool = False
    files: int = 0  # files that were searched
    bytes: int = 0

    @property
    def pages(self) -> Forgotten:
        """The list with the URLs that were redirected to its pages, by which documents are found."""
        return self.wanted.united(Forgotten(urls=tuple(map(url_hash, self.found.redirected))))

    @property
    def sources(self) -> tuple[str, ...]:
        """Folders of the steps that take pages from outside."""
        return tuple(step.folder for step in self.rewritten)

    def touches(self, name: str) -> bool:
        """Return True if a file is in a folder that is rewritten or removed."""
        return any(name.startswith(f"{folder}/") for folder in (*self.sources, *self.removed))


def plan_removal(root: Folder, targets: Sequence[str], run: str | None) -> Removal:
    """Search an output for the targets.

    Raises:
        UserError: There is no target or no output, or the output has no trace of any of the targets.
        RunError: A file that has to be searched is damaged.
    """
    if not targets:
        raise UserError("give a URL, a domain, or a file with one of these per line")
    output = Output(root)
    if not output.manifests and not unfinished(output):
        raise UserError(f"{root.url} holds no finished step; give the --output of a flow")
    if output.unreadable:
        broken = output.unreadable[0]
        raise RunError(f"{root.url}/{broken}/{MANIFEST} is damaged, or of another format; remove {broken} first")
    selection = selection_of(targets)
    found = find_pages(output, selection)
    found = found.model_copy(update={"texts": (*found.texts, *forms_in_tokens(root, found.texts))})
    wanted = narrowed(targets, found.urls) if found.steps else selection
    sources = {folder: made for folder, made in output.manifests.items() if made.step in SOURCES and "/" not in folder}
    ordered = sorted(sources, key=lambda folder: SOURCES.index(sources[folder].step))
    indexes = {TOKEN_INDEX} if any(name.startswith(f"{TOKEN_INDEX}/") for name in output.sizes) else set()
    removal = Removal(
        targets=tuple(targets),
        wanted=wanted,
        missing=tuple(target for target in targets if not selection_of([target]).matches(*found.urls)),
        found=found,
        rewritten=tuple(Rewriting(folder=one, inputs=_links(sources[one], sources)) for one in ordered),
        removed=tuple(sorted({*_made_of(output, sources), *unfinished(output), *indexes})),
    )
    seen = scan(root, wanted, removal.pages, found.texts, removal.sources)
    traces = tuple(
        trace.model_copy(update={"step": _step_of(root, trace.file)})
        for trace in seen.traces
        if not removal.touches(trace.file)
    )
    # A run may read the pages without a step that has them: as copies, or in a mixture.
    runs = tuple(read_by(one, removal.pages, root) for one in find_runs(root, run))
    if not found.steps:
        runs = tuple(reading for reading in runs if reading.steps or reading.inherited)
    if not (found.steps or seen.traces or runs or _is_listed(root, targets)):
        shown = ", ".join(targets[:3]) + (f" and {len(targets) - 3} more" if len(targets) > 3 else "")
        raise UserError(f"{root.url} has no page of {shown}; give URLs as in urls/ or documents/, domains, or a file")
    update = {"traces": traces, "mirrors": tuple(seen.mirrors), "files": seen.files, "bytes": seen.bytes, "runs": runs}
    if not found.steps and not seen.traces:  # listed before: nothing is left
        update |= {"rewritten": (), "removed": ()}
    return removal.model_copy(update=update)


def _is_listed(root: Folder, targets: Sequence[str]) -> bool:
    """Return True if all targets are in the list of the output already."""
    known = read_forgotten(root)
    return all(
        url_hash(target) in known.urls or ((domain := domain_of(target)) and domain_hash(domain) in known.domains)
        for target in targets
    )


def narrowed(targets: Sequence[str], urls: Sequence[str]) -> Forgotten:
    """Return the list of the targets; one with the form of a domain is no name of a file unless a page has it."""
    keys = {url_key(url) for url in urls}
    domains = {target: domain for target in targets if (domain := domain_of(target))}
    meant = {target for target, domain in domains.items() if Forgotten(domains=(domain_hash(domain),)).matches(*urls)}
    as_urls = [target for target in targets if target not in domains or url_key(target) in keys]
    chosen = [domain for target, domain in domains.items() if target in meant or url_key(target) not in keys]
    return Forgotten(
        urls=tuple(sorted({url_hash(target) for target in as_urls})),
        domains=tuple(sorted({domain_hash(domain) for domain in chosen})),
    )


def _links(made: Manifest, sources: dict[str, Manifest]) -> dict[str, str]:
    """Return the inputs of a step that are other steps which take pages from outside."""
    by_identity = {one.identity: folder for folder, one in sources.items()}
    known = made.inputs | made.read
    return {name: by_identity[identity] for name, identity in known.items() if identity in by_identity}


def _made_of(output: Output, sources: dict[str, Manifest]) -> set[str]:
    """Return the folders of all steps that are made of the sources, and of those whose inputs are gone."""
    found: set[str] = set()
    while True:
        identities = {output.manifests[folder].identity for folder in found}
        more = {
            folder
            for folder, made in output.manifests.items()
            if folder not in (*sources, *found) and not folder.startswith(RUNS)
            for identity in made.inputs.values()
            if IDENTITY.fullmatch(identity) and (identity in identities or _is_of(output, identity, sources))
        }
        if not more:
            return found
        found |= more


def _is_of(output: Output, identity: str, sources: dict[str, Manifest]) -> bool:
    """Return True for an input that a source is or is merged from, or that no step of the output has."""
    step = output.find(identity)
    if step is None or step.folder not in output.manifests:  # gone, or merged from several
        return True
    return step.folder in sources


def _step_of(root: Folder, name: str) -> str:
    """Return the folder of the step that a file is of; empty if there is none.

    It is part of the plan, since a removal that is killed has removed the manifest that shows it.
    """
    if name.startswith(COPIES):
        return "/".join(name.split("/")[:2])
    if name.startswith(RUNS):
        return ""
    parents = [str(parent) for parent in PurePosixPath(name).parents][:-1]
    return next((parent for parent in parents if root.size(f"{parent}/{MANIFEST}") is not None), "")
