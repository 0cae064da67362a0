"""Publication of a model and of its training documents: a folder, or repositories of the Hugging Face hub.

What a publication has is a list of files; internal ones (manifests, batches, checkpoints, logs) are never on it.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from gpt2train.convert.dataset import dataset_card, write_splits
from gpt2train.convert.settings import CARD
from gpt2train.errors import RunError, UserError
from gpt2train.store.files import atomic_folder
from gpt2train.store.folder import Folder
from gpt2train.store.hub import HUB, XET, allow, set_for_client
from gpt2train.store.inner_path import inner_file
from gpt2train.store.manifest import MANIFEST
from gpt2train.store.output import FinishedStep
from tasks.outputs.passport.about import About, stated_about
from tasks.outputs.passport.cards import corpus_sections
from tasks.outputs.passport.croissant import croissant
from tasks.outputs.passport.eu_summary import eu_summary
from tasks.outputs.passport.facts import Corpus, corpus_facts
from tasks.outputs.passport.signature import SIGNATURE, sign
from tasks.outputs.passport.write import CROISSANT, FOLDER, NO_ABOUT, PACKAGES, SUMMARY

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

WEIGHTS = "model.safetensors"
INTERNAL = (".", "_", SIGNATURE)  # starts of names in a model folder that are not published
DATA = "data"
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Contents:
    """What is published."""

    # Files of the model by their paths in the publication; empty without a model.
    model: dict[str, Path] = field(default_factory=dict)
    documents: FinishedStep | None = None  # step whose documents are published; None without a dataset
    corpus: Corpus | None = None  # facts of the corpus of these documents
    about: About = NO_ABOUT  # what the publisher states
    left_out: tuple[str, ...] = ()  # names in the model folder that are not published

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it has of `model` and `dataset`."""
        return ("model",) * bool(self.model) + ("dataset",) * bool(self.documents)


def contents_of(source: str, *, dataset: bool, about: About | None = None) -> Contents:
    """Find what a publication of a model folder, a run folder or the output folder of a flow has.

    With `dataset` it has the documents too. By default the publisher states what was stated with the last passport.

    Raises:
        UserError: the folder has no model, or several; with `dataset`, it has no documents.
    """
    root = Folder.given(source)
    model = _model_folder(Path(root.path()), optional=dataset) if root.is_local else None
    if model is None and not dataset:
        raise UserError(f"{source} has no model; give the folder of a run, or --dataset for the documents alone")
    files: dict[str, Path] = {}
    left: list[str] = []
    if model:
        for path in sorted(model.rglob("*")):
            name = path.relative_to(model).as_posix()
            if any(part.startswith(INTERNAL) for part in name.split("/")) or path.is_symlink():
                left.append(name)
            elif path.is_file():
                files[name] = path
        for name in (SUMMARY, PACKAGES):
            if (model.parent / FOLDER / name).is_file():
                files.setdefault(name, inner_file(model.parent, f"{FOLDER}/{name}", model.parent))
    if not dataset:
        return Contents(files, left_out=tuple(left))
    is_output = root.size(f"shuffled/{MANIFEST}") is not None
    home = root if model is None or is_output else Folder(model.parents[2])
    corpus = corpus_facts(home)
    documents = next((step for step in corpus.steps if step.manifest.step == "shuffle"), None)
    if documents is None:
        raise UserError(f"{home.url} holds no finished step shuffle; give the output folder of a data flow")
    return Contents(files, documents, corpus, about or stated_about(home), tuple(left))


def _model_folder(source: Path, optional: bool) -> Path | None:
    """Return the model folder of a model folder, a run folder or an output folder."""
    if not source.is_dir():
        raise UserError(f"{source} is not a folder; give an output folder, a run folder or a model folder")
    if (source / WEIGHTS).is_file():
        return source
    if (source / "config.toml").is_file():
        if not (source / "model" / WEIGHTS).is_file():
            merge = f"gpt2train merge {quote(str(source))} --output {quote(f'{source}/model')}"
            raise UserError(f"{source} has no merged model; {merge}")
        return source / "model"
    found = sorted(path.parent for path in source.glob(f"runs/*/model/{WEIGHTS}"))
    if len(found) > 1:
        names = ", ".join(str(path.parent.relative_to(source)) for path in found)
        raise UserError(f"{source} has {len(found)} models; give the folder of one run: {names}")
    if not found and not optional:
        raise UserError(f"{source} has no model; give the folder of a run, or --dataset for the documents alone")
    return found[0] if found else None


def _write_dataset(contents: Contents, folder: Path) -> None:
    """Write the documents, their card and their description to a new or empty folder; they are streamed."""
    corpus, documents = contents.corpus, contents.documents
    if corpus is None or documents is None:
        raise AssertionError("the publication has no dataset")
    folder.mkdir(parents=True, exist_ok=True)
    for name in documents.outputs if documents.folder.is_local else ():
        step = Path(documents.folder.path())
        inner_file(step.parent, f"{step.name}/{name}", step)
    counts = write_splits((documents.folder.open(name) for name in documents.outputs), folder / DATA)
    steps = [step.manifest for step in corpus.document_steps]
    card = dataset_card(counts, steps, contents.about.license, corpus_sections(corpus))
    (folder / CARD).write_text(card, encoding="utf-8")
    written = [Folder(folder).record(f"{DATA}/{path.name}") for path in sorted((folder / DATA).iterdir())]
    columns = pq.read_schema(folder / written[0].name).names if written else []
    described = croissant(corpus, written, columns, contents.about.license)
    (folder / CROISSANT).write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / SUMMARY).write_text(eu_summary(corpus, contents.about), encoding="utf-8")


def publish_to_folder(contents: Contents, target: Path, key: Path | None = None) -> list[Path]:
    """Write the publication to a new folder, atomically; with a model and a dataset, to one folder for each in it.

    It is signed with the private key, if one is given. Returns the folders.
    """
    if target.exists():
        raise UserError(f"{target} exists already; give --to another folder, or remove it")
    with atomic_folder(target) as draft:
        for kind in contents.kinds:
            _fill(contents, kind, draft / kind if len(contents.kinds) > 1 else draft / ".", key)
    return [target / kind for kind in contents.kinds] if len(contents.kinds) > 1 else [target]


def _fill(contents: Contents, kind: str, folder: Path, key: Path | None) -> None:
    if kind == "dataset":
        _write_dataset(contents, folder)
    else:
        for name, path in contents.model.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
    if key:
        sign(folder, key)


def publish_to_hub(contents: Contents, address: str, *, public: bool, key: Path | None = None) -> list[str]:
    """Upload the publication, a commit for each repository: a model repository, a dataset repository of the same name.

    It is signed with the private key, if one is given; a new repository is `public` or private. Returns the addresses
    of the repositories at hf://USER/NAME.

    Raises:
        UserError: the address is malformed, or there is no token.
        RunError: the hub refuses the upload or does not answer.
    """
    name = repository(address)
    import huggingface_hub as hub

    token = hub.get_token()
    if not token:
        raise UserError(f"--to {address}: no token for the hub; set HF_TOKEN, or log in by: hf auth login")
    allow(f"{HUB}{name}")
    api, found = hub.HfApi(token=token, library_name="gpt2train"), []
    for kind in contents.kinds:
        with tempfile.TemporaryDirectory(prefix="gpt2train-publish-") as draft:
            folder = Path(draft) / kind
            _fill(contents, kind, folder, key)
            try:
                made = api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
                operations = [
                    hub.CommitOperationAdd(path.relative_to(folder).as_posix(), path)
                    for path in sorted(folder.rglob("*"))
                    if path.is_file()
                ]
                _commit(api, name, operations, kind)
            except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise RunError(f"{address} was not published ({kind}): {reason.replace(token, '…')}") from None
            found.append(str(made))
    return found


def _commit(api: "HfApi", name: str, operations: Sequence["CommitOperationAdd"], kind: str) -> None:
    """Commit files; to a hub that gives no token for Xet, which the library uploads to by default, as LFS."""
    message = "Publish with gpt2train"
    try:
        api.create_commit(name, operations, commit_message=message, repo_type=kind)
    except (OSError, ValueError) as error:
        if "xet-write-token" not in str(error):
            raise
        set_for_client(XET, on=True)
        api.create_commit(name, operations, commit_message=message, repo_type=kind)


def repository(address: str) -> str:
    """Return USER/NAME of hf://USER/NAME.

    Raises:
        UserError: the address has another form.
    """
    name = address.removeprefix(HUB).strip("/")
    if not REPOSITORY.fullmatch(name):
        raise UserError(f"--to {address!r} is no repository of the hub; write it as hf://USER/NAME")
    return name
