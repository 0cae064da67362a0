"""Models, tokenizers, documents and rows by their names on a hub: what each command records of the commit."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import constants

from tests.docs.page_commands import TRAIN, free_port, run_line, served
from tests.gpt2train.convert.export_models import passages, write_model, write_tokenizer
from tests.hub_server import Hub

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
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_OFFLINE", "On")  # as a command sets it
        # Of a client that is imported already:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home/hub"))
        yield server


def run_of(output: Path) -> Path:
    [run] = (output / "runs").iterdir()
    return run


@pytest.mark.slow
def test_every_command_takes_names_of_the_hub_and_records_their_commits(
    hub: Hub, tmp_path: Path, open_data: Path
) -> None:
    write_model(tmp_path / "model", write_tokenizer(tmp_path / "t", "bpe", passages(open_data)), "gpt2", {})
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
