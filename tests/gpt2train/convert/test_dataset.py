"""The dataset folder for hubs: every document once, in the order of its split, as `datasets` loads it."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpt2train.cli import app, run_command
from gpt2train.convert.dataset import COLUMNS, SPLITS, Counts, dataset_card, export_dataset
from gpt2train.errors import UserError
from gpt2train.store.folder import Folder
from tasks.shuffle.step import ShuffleSettings, shuffle
from tests.tasks.corpus import Inline, documents_of, row, rows_of
from tests.tasks.sources.text_files import read


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with 90 shuffled documents of all splits, in several shards."""
    root = Folder(tmp_path_factory.mktemp("prepared"))
    rows = [row(f"Document {n} {'word ' * n}", split=list(SPLITS)[n % 3]) for n in range(90)]
    with Inline(workers=1) as runner:
        shuffle(root, documents_of(root, rows, per_shard=25), ShuffleSettings(), runner)
    return Path(root.path())


def shuffled(prepared: Path) -> list[dict[str, object]]:
    from gpt2train.store.manifest import need_manifest

    root = Folder(prepared)
    return rows_of(root, need_manifest(root / "shuffled"))


def test_each_split_has_its_documents_in_order(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shuffled holds no finished step; give the output folder"):
        export_dataset(tmp_path, tmp_path / "set")
    assert not list(tmp_path.iterdir())
    counts = export_dataset(prepared, tmp_path / "set", "mit", file_bytes=3_000)
    for ours, name in SPLITS.items():
        files = sorted((tmp_path / "set/data").glob(f"{name}-*.parquet"))
        written = [one for file in files for one in pq.read_table(file).to_pylist()]
        wanted = [{key: one[key] for key in COLUMNS} for one in shuffled(prepared) if one["split"] == ours]
        assert written == wanted
        assert counts.documents[name] == 30
    with pytest.raises(UserError, match="set exists already"):
        export_dataset(prepared, tmp_path / "set")


def test_the_library_datasets_loads_the_folder(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    assert run_command(app, ["data", "export", str(prepared), "--output", str(tmp_path / "set")]) == 0
    assert "30 train" in capsys.readouterr().out
    loaded = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == dict.fromkeys(SPLITS.values(), 30)
    assert loaded["train"].column_names == list(COLUMNS)


def test_json_lines_are_read_again_as_the_same_documents(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the tools of Megatron-LM and ColossalAI take them: `{"text": …, "url": …}`."""
    target = tmp_path / "raw.jsonl"
    assert run_command(app, ["data", "export", str(prepared), "--output", str(target), "--step", "shuffled"]) == 0
    assert capsys.readouterr().out.startswith("90 documents\n")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    wanted = [{key: one[key] for key in COLUMNS if one[key] is not None} for one in shuffled(prepared)]
    assert rows == wanted
    again = rows_of(Folder(tmp_path / "out"), read(tmp_path / "out", target))
    assert [(one["text"], one["url"]) for one in again] == [(one["text"], one["url"]) for one in wanted]
    for output, step, message in (
        (target, "shuffled", "exists already"),
        (tmp_path / "b.jsonl", "documents", "documents holds no finished step"),
        (tmp_path / "folder", "clean", "--step goes with JSON lines"),
    ):
        assert run_command(app, ["data", "export", str(prepared), "--output", str(output), "--step", step]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "b.jsonl").exists()


@given(
    documents=st.dictionaries(st.sampled_from(list(SPLITS.values())), st.integers(1, 10**9), min_size=1),
    languages=st.lists(st.sampled_from(["en", "no", "zh", "und"])),
    license=st.sampled_from([None, "mit", "odc-by"]),
)
def test_the_front_matter_is_yaml(documents: dict[str, int], languages: list[str], license: str | None) -> None:
    counts = Counts()
    counts.documents.update(documents)
    counts.languages.update(languages)
    card = dataset_card(counts, [], license)
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == (license or "unknown")
    assert {entry["split"] for entry in front["configs"][0]["data_files"]} == set(documents)
    assert front.get("language", []) == sorted(set(languages))
