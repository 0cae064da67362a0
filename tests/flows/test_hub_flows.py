"""Models, tokenizers and documents by their names on a hub, and settings of published corpora; what is recorded."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from flows.settings import DataprepSettings, resolve
from tests.docs.page_commands import TRAIN, run_line, served
from tests.gpt2train.convert.model_folders import passages, write_random, write_trained
from tests.hub_server import Hub, ask_only
from tests.object_stores import free_port

TALKS = [
    {"messages": [{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": f"It is {n}"}]}
    for n in range(24)
]
TASK = """kind = "answers"
max_length = 32

[data]
train = "hf://datasets/some/talks/*.jsonl"
messages = "messages"
holdout = 0.2
"""
SIZES = re.sub(r"--train\.model\.\S+ \S+ ", "", TRAIN)  # of the model that a training begins from


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as server:
        monkeypatch.chdir(tmp_path)
        ask_only(server, monkeypatch)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home/hub"))
        yield server


def run_of(output: Path) -> Path:
    [run] = (output / "runs").iterdir()
    return run


@pytest.mark.slow
def test_every_command_takes_names_of_the_hub_and_records_their_commits(
    hub: Hub, tmp_path: Path, open_data: Path
) -> None:
    write_random(tmp_path / "model", write_trained(tmp_path / "t", "bpe", passages(open_data)), "gpt2", {})
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir() if path.is_file()}
    commit = hub.put("models/some/model", {**files, "pytorch_model.bin": b"a pickle" * 200})
    texts = passages(open_data)
    of_texts = hub.put(
        "datasets/some/texts", {"a.jsonl": "".join(json.dumps({"text": one}) + "\n" for one in texts).encode()}
    )
    rows = "".join(json.dumps(row) + "\n" for row in TALKS).encode()
    of_rows = hub.put("datasets/some/talks", {"a.jsonl": rows})
    address = f"hf://some/model@{commit}"

    (tmp_path / "task.toml").write_text(TASK)
    tune = "python -m flows.finetune --model some/model --task task.toml --output tuned --launch.processes 1"
    run_line(f"{tune} {SIZES.replace('--train.steps 2', '--train.epochs 1')}")
    tuned = run_of(tmp_path / "tuned")
    card = (tuned / "model/README.md").read_text()
    assert "\nbase_model: some/model\n" in card and address.replace("_", "\\_") in card
    assert json.loads((tuned / "run.json").read_text())["init_from"] == address
    samples = json.loads((tmp_path / "tuned/task/_manifest.json").read_text())
    assert samples["read"] == {"hf://datasets/some/talks": of_rows}

    (tmp_path / "items.jsonl").write_text('{"text": "the text"}\n')
    run_line("gpt2train evaluate lambada --model some/model --data items.jsonl --output scores.json")
    assert json.loads((tmp_path / "scores.json").read_text())["model"] == address

    assert f"the weights are those of {address}" in run_line("gpt2train convert some/model plain --to huggingface")
    assert "\nbase_model: some/model\n" in (tmp_path / "plain/README.md").read_text()
    run_line("gpt2train convert hf://some/model start --to gpt2train")
    run_line("gpt2train convert start again --to huggingface")
    assert "\nbase_model: some/model\n" in (tmp_path / "again/README.md").read_text()
    assert "[5 tokens, " in run_line("gpt2train generate --model some/model --prompt the --max-new-tokens 5")
    port = free_port()
    with served(f"gpt2train serve --model some/model --port {port}"):
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()
        assert [(one["id"], one["chat"]) for one in answer["data"]] == [("model", False)]

    prepare = "python -m flows.dataprep --documents hf://datasets/some/texts --output out --workers 1"
    less = "--clean.min-tokens 0 --clean.split.valid 0.2 --clean.split.test 0.1"
    run_line(f"{prepare} --tokenizer.name folder --tokenizer.folder hf://some/model {less} --clean.language.keep any")
    begin = "--train.checkpoints.init-from some/model --train.checkpoints.restore weights"
    sizes = "--train.model.layers 2 --train.model.heads 4 --train.model.hidden 64 --train.model.context 128"
    run_line(f"python -m flows.pretrain --preset tiny --output out --launch.processes 1 {SIZES} {sizes} {begin}")
    begun = run_of(tmp_path / "out")
    assert json.loads((begun / "run.json").read_text())["init_from"] == address
    run_line(f"gpt2train merge {begun} --output {begun}/model")
    assert "\nbase_model: some/model\n" in (begun / "model/README.md").read_text()
    run_line("gpt2train passport out")
    passport = (tmp_path / "out/passport/README.md").read_text()
    assert f"| hf://datasets/some/texts | {of_texts} |" in passport
    summary = (begun / "passport/eu-summary.md").read_text()
    assert address in summary and f"hf://datasets/some/texts at the commit {of_texts}" in summary
    assert f"hf://datasets/some/texts@{of_texts}" in run_line("gpt2train trace --data out --sample 0 --seq-length 32")
    run_line("gpt2train data index out")
    traced = run_line(f"gpt2train trace --data out --text '{texts[0][:100]}'")
    assert f"of hf://datasets/some/texts at the commit {of_texts}" in traced
    sent = [call for call in hub.calls if call.startswith("GET") and "/resolve/" in call]
    assert sent and not any("pytorch_model" in call for call in sent)


# Columns as on the cards of HuggingFaceFW/fineweb, HuggingFaceFW/fineweb-edu and bigcode/the-stack-dedup, in nanochat's
# reader of karpathy/climbmix-400b-shuffle, and of Skylion007/openwebtext.
PAGE = {"dump": "CC-MAIN-2013-20", "file_path": "s3://commoncrawl/x.warc.gz", "language": "en", "language_score": 0.9}
FINEWEB = {"text": "page {}", "id": "<urn:uuid:{}>", "url": "http://example.org/{}", **PAGE, "token_count": 2}
STACK = {
    **{"hexsha": "sha{}", "size": 9, "ext": "py", "lang": "Python", "max_stars_repo_path": "a/{}.py"},
    **{"max_stars_repo_name": "some/code", "max_stars_repo_licenses": ["MIT", "Apache-2.0"], "max_stars_count": None},
    **{"content": "code {}", "avg_line_length": 4.0, "max_line_length": 7, "alphanum_fraction": 0.8},
}
CARD = "---\nconfigs:\n" + "".join(
    f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {path}\n"
    for name, path in (("default", "data/*/*"), ("sample-10BT", "sample/10BT/*"))
)
CARD += "---\n# A card\n"
# Repository, branch, files that are read, files that are not, and a row.
CORPORA: dict[str, tuple[str, str, list[str], list[str], Mapping[str, Any]]] = {
    "fineweb": (
        *("HuggingFaceFW/fineweb", "main", ["sample/10BT/000_00000.parquet"], ["data/CC-MAIN-2013-20/0.parquet"]),
        FINEWEB | {"date": "2013-05-18T05:48:54Z"},
    ),
    "fineweb-edu": (
        *("HuggingFaceFW/fineweb-edu", "main", ["sample/10BT/000_00000.parquet"], ["data/CC-MAIN-2013-20/0.parquet"]),
        FINEWEB | {"score": 3.1, "int_score": 3},
    ),
    "climbmix": (
        *("karpathy/climbmix-400b-shuffle", "main", ["shard_00000.parquet", "shard_00169.parquet"]),
        *(["shard_00170.parquet", "shard_06542.parquet"], {"text": "mixed {}"}),
    ),
    "openwebtext-texts": (
        *("Skylion007/openwebtext", "refs/convert/parquet", ["plain_text/train/0000.parquet"], []),
        {"text": "linked {}"},
    ),
    "the-stack": (
        *("bigcode/the-stack-dedup", "main", ["data/python/train-00000-of-00144.parquet"]),
        *(["data/c/train-00000-of-00257.parquet"], STACK),
    ),
}
PROGRAM = """
import json, sys
from flows.settings import DataprepSettings, resolve
from flows.sources import Sources
from gpt2train.store.folder import Folder
from tasks.sources.texts import texts
from tests.tasks.corpus import Inline, rows_of

made = {}
for name in sys.argv[2:]:
    root, settings = Folder(f"{sys.argv[1]}/{name}"), resolve(DataprepSettings, f"dataprep/{name}")
    found = texts(root, Sources(settings).documents.texts, settings.json_key, settings.texts, Inline())
    made[name] = [rows_of(root, found), dict(found.outcome.facts)]
print(json.dumps(made))
"""


def numbered(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {key: value.format(number) if isinstance(value, str) else value for key, value in row.items()}


def parquet(rows: Iterable[Mapping[str, Any]]) -> bytes:
    pq.write_table(pa.Table.from_pylist([*rows]), sink := io.BytesIO())
    return sink.getvalue()


def test_documents_have_the_text_the_id_and_the_licence_that_are_published(tmp_path: Path) -> None:
    with Hub() as hub:
        for repository, branch, read, unread, row in CORPORA.values():
            files = {path: parquet([numbered(row, 2 * n), numbered(row, 2 * n + 1)]) for n, path in enumerate(read)}
            files |= {path: parquet([numbered(row, 99)]) for path in unread}
            hub.put(f"datasets/{repository}", files | {"README.md": CARD.encode()}, branch)
        environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        environment.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), *CORPORA]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    for name, (_, _, read, _, row) in CORPORA.items():
        rows, facts = made[name]
        text = row.get("text") or row["content"]
        assert [one["text"] for one in rows] == [text.format(number) for number in range(2 * len(read))], name
        assert {one["date"] for one in rows} == {row.get("date")}
        urls = [one["url"] for one in rows]
        if "url" in row:
            assert urls == ["http://example.org/0", "http://example.org/1"]
        elif "hexsha" in row:
            assert urls == [f"{Path(read[0]).name}#sha0", f"{Path(read[0]).name}#sha1"]
            assert facts["license_Apache-2.0, MIT"] == 2
        else:
            assert urls == [f"{Path(path).name}#{number}" for path in read for number in (1, 2)]


@pytest.mark.parametrize("name", CORPORA)
def test_the_settings_name_the_source_and_its_licence(name: str) -> None:
    settings = resolve(DataprepSettings, f"dataprep/{name}")
    assert all(place.startswith(f"hf://datasets/{CORPORA[name][0]}") for place in settings.documents)
    assert settings.tokenizer.name == "gpt2" and settings.output == f"out/{name}"
