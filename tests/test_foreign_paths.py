"""Paths that a file of a stranger names: no reader follows one out of the folder of the file."""

import ast
import hashlib
import importlib
import json
import pickle
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel

from gpt2train.checkpoint.manifest import read_manifest
from gpt2train.checkpoint.store import SafeReader
from gpt2train.convert.dataset import export_dataset
from gpt2train.convert.dist_tensors import DistTensors
from gpt2train.convert.megatron_folder import iteration_folder
from gpt2train.convert.tensor_files import open_tensors
from gpt2train.data.suffix_index import read_index_manifest
from gpt2train.errors import UserError
from gpt2train.quality.documents import sample_documents
from gpt2train.store import manifest as step_manifest
from gpt2train.store.folder import Folder
from gpt2train.store.inner_path import inner_path, is_inner
from gpt2train.store.output import Output
from gpt2train.store.run_folder import selected_checkpoint
from tasks.core.stage_inputs import on_local_disk
from tasks.core.step import Step
from tasks.outputs.forget.command import forget
from tasks.outputs.passport.publish import contents_of, publish_to_folder

LAYERS = ("gpt2train", "tasks", "flows")
HOSTILE = ("../victim", "/victim", "a/../../victim", "./victim", "a//victim", "", "a\\..\\victim", "C:victim", "a\0")
HASH = hashlib.sha256(b"evil").hexdigest()

# Fields of what is read from files that are text but no path inside of their folder.
PLAIN = {
    "BatchRecord": {"fingerprint", "versions"},
    "CheckpointManifest": {"config", "tokenizer_hash", "validation", "valid_metrics", "torch"},
    "CorpusNote": {"prefix", "identity", "fingerprint"},  # the tokens of a run may lie anywhere
    "EarlyStop": {"reason", "stop_at"},
    "FileRecord": {"sha256"},
    "Forgotten": {"urls", "domains", "aliases"},
    "Found": {"urls", "redirected", "documents", "tokens", "orphans", "user_files", "texts"},
    "Manifest": {"step", "fingerprint", "content", "parameters", "inputs", "versions", "read"},
    "Outcome": {"reasons", "facts"},
    "RemoteJobRequest": {"release", "run", "token", "node", "arguments", "endpoint", "environment"},  # not from a file
    "Removal": {"targets", "missing", "mirrors"},
    "RunReading": {"run", "inherited", "outside", "data", "note"},  # `run` is checked before it is followed
    "RunRecord": {"preset", "inputs", "init_from", "launch"},
    "Start": {"at", "host", "layout", "device", "versions", "commit"},
    "StepCount": {"step"},
    "StoredCorpus": {"identity"},
    "StoredFile": {"sha256"},
    "Trace": {"place", "what"},
}


def stored_models() -> Iterator[type[BaseModel]]:
    """Yield the models that a module reads from JSON, and those in their fields."""
    pending: list[type[BaseModel]] = []
    for layer in LAYERS:
        for path in sorted(Path(layer).rglob("*.py")):
            if "model_validate_json" not in (text := path.read_text()):
                continue
            module = importlib.import_module(".".join(path.with_suffix("").parts))
            pending += [
                getattr(module, node.value.id)
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute) and node.attr == "model_validate_json"
                if isinstance(node.value, ast.Name)
            ]
    seen: set[type[BaseModel]] = set()
    while pending:
        if (model := pending.pop()) not in seen:
            seen.add(model)
            yield model
            pending += [one for field in model.model_fields.values() for one in _models(field.annotation)]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def _unchecked_text(annotation: Any) -> bool:
    if annotation is str:
        return True
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return _unchecked_text(parts[0]) and not any(isinstance(part, AfterValidator) for part in parts[1:])
    # Of a table, the keys alone may be names of files: the values of the stored models are counts and hashes.
    return any(map(_unchecked_text, parts))


def test_each_text_of_a_stored_model_is_an_inner_path_or_known_to_be_none() -> None:
    models = list(stored_models())
    assert {model.__name__ for model in models} >= {"Manifest", "FileRecord", "CheckpointManifest", "Removal"}
    for model in models:
        types = typing.get_type_hints(model, include_extras=True)
        plain = {name for name in model.model_fields if _unchecked_text(types[name])}
        if model.__name__ == "Rewriting":
            plain.discard("inputs")  # its keys are names of inputs
        assert plain == PLAIN.get(model.__name__, set()), f"{model.__name__}: declare paths as InnerPath"


def test_names_of_step_files_are_read_by_the_model_of_a_manifest_alone() -> None:
    readers = {
        path.as_posix()
        for layer in LAYERS
        for path in Path(layer).rglob("*.py")
        if '["name"]' in (text := path.read_text()) and '["outcome"]' in text
    }
    assert readers == set()


@given(st.lists(st.sampled_from(["a", "..", ".", "", "...", " ", "b.c"]), max_size=5))
def test_an_inner_path_stays_in_its_folder(parts: list[str]) -> None:
    name, folder = "/".join(parts), Path("/folder/of/files")
    assert is_inner(name) == (bool(parts) and not {"", ".", ".."} & {*parts})
    if is_inner(name):
        assert (folder / name).resolve().is_relative_to(folder)


def written_manifest(folder: Path, name: str, /, kind: str = "outputs", **values: object) -> Path:
    """Write the manifest of a step with one file of this name."""
    record = {"name": name, "bytes": 4, "sha256": HASH, "rows": None}
    manifest: dict[str, Any] = dict.fromkeys(("fingerprint", "content"), "0" * 32)
    manifest |= {"step": "x", "version": 1, "folder": folder.name, "parameters": {}, "inputs": {}, "versions": {}}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "_manifest.json"
    path.write_text(json.dumps(manifest | {"outcome": {kind: [record]}} | values))
    return path


def of_step(
    step: str, read: Callable[[Path], object], kind: str = "outputs", suffix: str = ""
) -> Callable[[Path, str], object]:
    """A reader of the manifest of a step, in which a file has the hostile name."""

    def reader(folder: Path, name: str) -> object:
        written_manifest(folder / step, name and name + suffix, kind)
        return read(folder)

    return reader


def manifest_of(folder: Path) -> object:
    return step_manifest.read_manifest(Folder(folder / "x"))


def step_folder(folder: Path, name: str) -> object:
    written_manifest(folder / "x", "x", folder=name or "..")
    return manifest_of(folder)


def batch_record(folder: Path, name: str) -> object:
    step = Step(Folder(folder), "x", version=1, parameters={}, inputs={})
    (folder / "x" / "_batches").mkdir(parents=True)
    outcome = {"outputs": [{"name": name, "bytes": 4, "sha256": HASH}]}
    (folder / "x" / "_batches" / "b.json").write_text(json.dumps({"fingerprint": step.fingerprint, "outcome": outcome}))
    return step.batch("b"), step.batches(["b"])


def token_index(folder: Path, name: str) -> object:
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "blocks": [{"files": {name: 4}}]}))
    return read_index_manifest(folder)


def index_of(stem: str) -> Callable[[Path, str], object]:
    """A reader of the index of a model in several files."""

    def reader(folder: Path, name: str) -> object:
        (folder / f"{stem}.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        return open_tensors(folder)

    return reader


def checkpoint(folder: Path, name: str) -> object:
    position = {"step": 1, "samples": 1}
    stored = {"format": 1, "position": position, "config": {}, "tokenizer_hash": None, "torch": "2"}
    (folder / "manifest.json").write_text(json.dumps(stored | {"files": {name: {"bytes": 4, "sha256": HASH}}}))
    return read_manifest(folder)


def metadata_of(read: Callable[[Path], object]) -> Callable[[Path, str], object]:
    """A reader of a distributed checkpoint whose metadata names a file."""

    def reader(folder: Path, name: str) -> object:
        dcp.save({"model.w": torch.ones(2)}, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
        metadata = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
        for stored in metadata.storage_data.values():
            stored.relative_path = name
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
        return read(folder)

    return reader


def megatron_tracker(folder: Path, name: str) -> object:
    (folder / "latest_checkpointed_iteration.txt").write_text(name or "..")
    return iteration_folder(folder)


READERS = {
    **{kind: of_step("x", manifest_of, kind) for kind in ("outputs", "rejected", "audit")},
    "exported": of_step("shuffled", lambda folder: export_dataset(folder, folder / "dataset"), suffix=".parquet"),
    "labelled": of_step("clean", sample_documents),
    "looked up": of_step("clean", lambda folder: Output(Folder(folder)).steps),
    **{one.__name__: one for one in (step_folder, batch_record, token_index, checkpoint, megatron_tracker)},
    **{stem: index_of(stem) for stem in ("model.safetensors", "pytorch_model.bin")},
    "own metadata": metadata_of(lambda folder: SafeReader(folder).read_metadata()),
    "foreign metadata": metadata_of(DistTensors),
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("reader", READERS)
def test_a_path_out_of_the_folder_is_refused_with_the_file_that_names_it(tmp_path: Path, reader: str) -> None:
    (tmp_path / "victim").write_bytes(b"evil")
    for number, name in enumerate(HOSTILE):
        (folder := tmp_path / str(number)).mkdir()
        with pytest.raises(UserError, match=f"{folder}.*(names|contains|has no)"):
            READERS[reader](folder, name)


def test_an_error_without_a_file_still_refuses() -> None:
    with pytest.raises(UserError, match=r"x names the file '\.\./y'"):
        inner_path("../y", "x")
    with pytest.raises(UserError, match="names the file '3'"):
        inner_path(3, "x")


def test_tokens_of_a_stranger_overwrite_no_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    name = "../" * 12 + str(victim).lstrip("/")
    store = fsspec.filesystem("memory")
    store.pipe_file("/stranger/tokens/_manifest.json", written_manifest(tmp_path / "tokens", name).read_bytes())
    store.store[f"/stranger/tokens/{name}"] = type(store.store["/stranger/tokens/_manifest.json"])(store, name, b"evil")
    data = Folder("memory://stranger")
    with pytest.raises(UserError, match=r"memory://stranger/tokens/_manifest\.json names the file"):
        on_local_disk(data, [step_manifest.need_manifest(data / "tokens")], Folder(tmp_path / "out"))
    assert victim.read_text() == "mine"


def test_a_link_out_of_an_output_is_not_published(tmp_path: Path) -> None:
    table = pa.table({name: ["x"] for name in ("text", "id", "url", "title", "date", "language", "split")})
    pq.write_table(table.append_column("tokens", [[1]]), tmp_path / "private.parquet")
    folder = tmp_path / "out" / "shuffled"
    written_manifest(folder, "a.parquet", step="shuffle")
    (folder / "a.parquet").symlink_to(tmp_path / "private.parquet")
    with pytest.raises(UserError, match="is a link out of"):
        export_dataset(tmp_path / "out", tmp_path / "dataset")
    with pytest.raises(UserError, match="is a link out of"):
        publish_to_folder(contents_of(str(tmp_path / "out"), dataset=True), tmp_path / "published")
    assert not (tmp_path / "dataset").exists() and not (tmp_path / "published").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"removed": ["../victim"]},
        {"rewritten": [{"folder": "../victim", "inputs": {}}]},
        {"traces": [{"file": "../victim/file", "place": "", "what": ""}]},
        {"traces": [{"file": "x", "place": "", "what": "", "step": "../victim"}]},
        {"runs": [{"run": "out/run", "later": ["../../../victim"]}], "delete_checkpoints": True},
        {"runs": [{"run": "victim", "later": ["checkpoints"]}], "delete_checkpoints": True},
    ],
    ids=["removed", "rewritten", "trace", "step", "checkpoint", "run"],
)
def test_a_removal_that_a_stranger_left_pending_touches_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim" / "checkpoints" / "checkpoints" / "file"
    for path in (victim, tmp_path / "victim" / "file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (tmp_path / "out").mkdir()
    pending = {"targets": ["a.test"], "wanted": {"urls": [], "domains": [], "aliases": {}}} | values
    (tmp_path / "out" / "forgotten.pending.json").write_text(json.dumps(pending))
    with pytest.raises(UserError, match=r"outside of it|not inside of its folder"):
        forget(output=str(tmp_path / "out"), yes=True)
    assert victim.is_file() and (tmp_path / "victim" / "file").is_file()


def test_the_name_of_the_best_checkpoint_leads_nowhere_else(tmp_path: Path) -> None:
    own = tmp_path / "run" / "checkpoints" / "step-00000001"
    other = tmp_path / "other" / "checkpoints" / "step-00000002"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    for name in ("../../other/checkpoints/step-00000002", str(other)):
        (own.parent / "best").write_text(name)
        assert selected_checkpoint(tmp_path / "run", "best") == own
