"""Passport of a corpus and of its runs: the documents, written to `OUT/passport/` and `OUT/runs/NAME/passport/`.

The Croissant description is `OUT/croissant.json`, since it names files below its own folder.
"""

import hashlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from gpt2train.errors import RunError, UserError
from gpt2train.runs.reading import find_runs, read_runs
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import MANIFEST, Manifest, canonical
from gpt2train.store.output import check_no_removal
from tasks.outputs.passport.about import STATED, About, stated_about
from tasks.outputs.passport.blend import blend_facts
from tasks.outputs.passport.cards import Sections, card_of_corpus, corpus_sections, training_sections
from tasks.outputs.passport.croissant import croissant
from tasks.outputs.passport.eu_summary import eu_summary
from tasks.outputs.passport.facts import Corpus, Training, corpus_facts, training_facts
from tasks.outputs.passport.lineage import Event, events
from tasks.outputs.passport.packages import spdx
from tasks.outputs.passport.signature import check_signature, sign

log = logging.getLogger("gpt2train")

FOLDER = "passport"
CARD, LINEAGE, SUMMARY, PACKAGES = "README.md", "openlineage.jsonl", "eu-summary.md", "spdx.json"
CROISSANT = "croissant.json"
MANIFESTS = "manifests.json"  # hashes of all manifests and of the Croissant description, beside the signature
NO_ABOUT = About()


def corpus_documents(name: str, corpus: Corpus, about: About = NO_ABOUT) -> dict[str, str]:
    """Return the documents of a corpus by path in the output folder, which has this name."""
    last = next((step for step in reversed(corpus.steps) if "text" in step.columns()), None)
    files = (
        [one.model_copy(update={"name": f"{last.name}/{one.name}"}) for one in last.manifest.outputs] if last else []
    )
    made = corpus.times.get(corpus.last.step)
    return {
        CROISSANT: _json(croissant(corpus, files, last.columns() if last else (), about.license)),
        f"{FOLDER}/{CARD}": card_of_corpus(corpus, about.license),
        f"{FOLDER}/{LINEAGE}": _lines(events(name, {name: corpus})),
        f"{FOLDER}/{SUMMARY}": eu_summary(corpus, about),
        f"{FOLDER}/{PACKAGES}": _json(spdx(f"{name}: corpus", corpus.packages, made[1] if made else None)),
    }


def run_documents(
    name: str, corpora: Mapping[str, Corpus], training: Training, about: About = NO_ABOUT
) -> dict[str, str]:
    """Return the documents of a run by path in the output folder, besides the model card.

    The corpora that it was trained on are given by name; none if one is not known.
    """
    folder = f"runs/{training.run.folder.name}/{FOLDER}"
    corpus = blend_facts(list(corpora.values())) if corpora else None
    made = training.times.get("train")
    packages = {**(corpus.packages if corpus else {}), **training.packages}
    found = {
        f"{folder}/{LINEAGE}": _lines(events(name, corpora, training)),
        f"{folder}/{PACKAGES}": _json(spdx(f"{name}: {training.run.name}", packages, made[1] if made else None)),
    }
    return found | ({f"{folder}/{SUMMARY}": eu_summary(corpus, about, training)} if corpus else {})


def write_passport(root: Folder, runs: Iterable[str] = (), about: About | None = None) -> list[str]:
    """Write the documents of a corpus and of runs on it, each atomically; return their paths in the output folder.

    What the publisher states is kept for the next time, and for a flow that writes the documents again.

    Raises:
        UserError: the folder holds neither a corpus nor a run, or a removal of pages was interrupted.
        RunError: a file that a manifest names is damaged.
    """
    check_no_removal(root)
    name = root.url.rpartition("/")[2]
    corpus = corpus_of(root)
    kept = {STATED: _json(about.model_dump(mode="json", exclude_defaults=True))} if about else {}
    about = about or stated_about(root)
    documents = corpus_documents(name, corpus, about) if corpus else {}
    for run in runs:
        training = training_facts(root, run)
        documents |= run_documents(name, corpora_of_run(root, training), training, about)
    if not documents:
        raise UserError(f"{root.url} holds neither a corpus nor a run; give the output folder of a flow")
    for path, text in {**kept, **documents}.items():
        root.write_bytes(path, text.encode())
    return list(documents)


def leave_passport(root: Folder, runs: Iterable[str] = ()) -> None:
    """Write the passport at the end of a flow; a failure is a warning, since all work is done by then."""
    try:
        write_passport(root, runs)
    except (UserError, RunError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("no passport was written (%s); to write it: gpt2train passport %s", error, quote(root.url))


def runs_in(root: Folder) -> list[str]:
    """Return the names of the runs below an output folder that can be read; none of one in an object store.

    What cannot be read is named on standard error.
    """
    runs = Path(root.path("runs"))
    if not root.is_local or not runs.is_dir():
        return []
    found, unreadable = read_runs([runs]) if any(find_runs(runs)) else ([], [])
    for one in unreadable:
        print(f"warning: {one.reason}", file=sys.stderr)
    return sorted(run.folder.relative_to(runs.resolve()).as_posix() for run in found)


def sign_passport(root: Folder, key: Path) -> Path:
    """Sign the documents of a corpus with the hashes of all manifests; return the file of the signature.

    Raises:
        UserError: the output is in an object store, or the key cannot be read.
    """
    folder = _local(root)
    (folder / MANIFESTS).write_bytes(canonical(_manifest_hashes(root)) + b"\n")
    return sign(folder, key)


def check_passport(root: Folder, key: Path) -> None:
    """Check the signature of the documents, and the manifests against their signed hashes.

    Raises:
        UserError: there is no signature.
        RunError: a document or a manifest is not as signed.
    """
    folder = _local(root)
    check_signature(folder, key)
    signed, found = json.loads((folder / MANIFESTS).read_bytes()), _manifest_hashes(root)
    different = sorted(name for name in {*signed, *found} if signed.get(name) != found.get(name))
    if different:
        raise RunError(f"{root.url}: not as signed: {', '.join(different)}")


def _local(root: Folder) -> Path:
    if not root.is_local:
        raise UserError(f"a signature is of local files, not of {root.url}; copy the folder {FOLDER} first")
    return Path(root.path(FOLDER))


def _manifest_hashes(root: Folder) -> dict[str, str]:
    """SHA-256 of each manifest below an output folder, which has the hashes of the outputs, and of the description."""
    place = Path(root.path())
    names = [*sorted(place.rglob(MANIFEST)), *([place / CROISSANT] if (place / CROISSANT).is_file() else [])]
    return {path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


def run_names(manifests: Iterable[Manifest]) -> list[str]:
    """Return the names of the runs that steps have trained."""
    return [manifest.folder.removeprefix("runs/") for manifest in manifests if manifest.step == "train"]


def corpus_of(root: Folder) -> Corpus | None:
    """Return the facts of the corpus in an output folder; None if it holds none."""
    try:
        return corpus_facts(root)
    except UserError:
        return None


def corpora_of_run(root: Folder, training: Training) -> dict[str, Corpus]:
    """Return the facts of the corpora that a run was trained on, in its own output folder or in others, by name.

    Empty if one is not known (token files made elsewhere, a corpus that was made again since): a document about a part
    of what was read would be wrong.
    """
    own = Path(root.path())
    found: dict[Path, Corpus] = {}
    for note in training.run.record.data:
        prefix = Path(note.prefix)
        home = own if prefix.is_relative_to(own) or len(prefix.parts) < 4 else prefix.parents[2]  # OUT/tokens/train/x
        corpus = found.get(home) or corpus_of(Folder(home))
        made = next((one.manifest for one in corpus.steps if one.manifest.step == "tokenize"), None) if corpus else None
        if corpus is None or made is None or made.fingerprint != note.fingerprint:
            return {}
        found[home] = corpus
    names = Counter(home.name for home in found)
    return {home.name if names[home.name] == 1 else "/".join(home.parts[-2:]): corpus for home, corpus in found.items()}


def card_sections(root: Folder, run: str) -> Sections:
    """Return the sections of a run's model card about its training text and what the training took."""
    training = training_facts(root, run)
    corpora = list(corpora_of_run(root, training).values())
    return (*(corpus_sections(blend_facts(corpora)) if corpora else ()), *training_sections(training))


def lineage_of(root: Folder, paths: Iterable[str]) -> list[Event]:
    """Return the events of written documents, each once."""
    found: dict[str, Event] = {}
    for path in paths:
        if path.endswith(LINEAGE):
            for line in root.read_bytes(path).splitlines():
                found[line.decode()] = json.loads(line)
    return list(found.values())


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _lines(found: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in found)
