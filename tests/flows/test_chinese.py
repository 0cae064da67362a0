"""The command of docs/data/languages.md: Chinese texts to a trained, scored and served model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from flows.settings import PipelineSettings
from gpt2train.config import to_toml
from gpt2train.settings import build
from tests.flows.test_small_corpora import TINY
from tests.processes import wait_for

PAGE = Path(__file__).parents[2] / "docs/data/languages.md"
SMALL = {  # a model and a vocabulary of a second
    "tokenizer": {"vocab_size": 600},
    "train": TINY | {"model": {"layers": 1, "heads": 2, "hidden": 16, "context": 64}},
    "launch": {"processes": 1},
    "evaluate": {"prompts": ["话说"], "sampling": {"max_new_tokens": 8}},
}


def commands() -> list[list[str]]:
    """The two commands of the page."""
    found = re.search(r"^    (python -m flows\.pipeline --documents corpus/.*\n.*)$", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    return [command.split() for command in found[1].replace("\\\n", " ").split("&&")]


def small_corpus(data: Path, folder: Path) -> None:
    """Beginnings of the novels, and some poems, as `.txt` and JSON lines."""
    folder.mkdir()
    for path in sorted((data / "eval/zh/corpus").iterdir()):
        lines = path.read_text(encoding="utf-8").split("\n")[:150]
        (folder / path.name).write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.exhaustive
def test_chinese_texts_become_a_served_model_by_the_documented_command(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "eval/zh/corpus").is_dir():
        pytest.skip(f"no Chinese corpus in {real_data}")
    small_corpus(real_data, tmp_path / "corpus")
    passages = [{"text": "却说玄德在店中，忽听得门外有人说话"}, {"text": "大圣笑道：“我去也！”"}]
    lambada = tmp_path / "cloze.jsonl"
    lambada.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in passages), encoding="utf-8")
    (tmp_path / "small.toml").write_text(to_toml(build(PipelineSettings, SMALL | {"documents": ["corpus/"]})))
    pipeline, serve = commands()
    more = ["--config", "small.toml", "--lambada", str(lambada)]
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    done = subprocess.run(
        [sys.executable, *pipeline[1:], *more],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    [model] = tmp_path.glob("out/zh/runs/*/model")
    scores = model.parent / "eval"
    cloze = json.loads((scores / "lambada.json").read_text())
    assert cloze["passages"] == 2
    assert cloze["definitions"]["lambada_openai"]["definition"].endswith("the last character")
    held_out = json.loads((scores / "perplexity.json").read_text())
    assert held_out["definition"].endswith("each character is a word") and held_out["bits_per_byte"] > 0
    assert held_out["words"] > 100
    assert json.loads((scores / "samples.json").read_text())["samples"][0]["prompt"] == "话说"
    assert "bits" in (tmp_path / "out/zh/report/report.html").read_text()
    check_server([*serve[:-1], str(model)], tmp_path)


def check_server(command: list[str], folder: Path) -> None:
    """Start the server of the page, and continue a text."""
    log = folder / "serve.log"
    entry = [sys.executable, "-m", "gpt2train", *command[1:], "--port", "0"]
    with (
        log.open("w") as file,
        subprocess.Popen(entry, cwd=folder, stdout=file, stderr=subprocess.STDOUT, text=True) as server,
    ):
        try:
            wait_for(lambda: "serving" in log.read_text() or server.poll() is not None, 300, "the server")
            address = re.search(r"http://\S+", log.read_text())
            assert address is not None, log.read_text()
            asked = {"prompt": "话说天下大势，", "max_tokens": 8, "seed": 1, "echo": True}
            answer = httpx.post(f"{address[0]}/v1/completions", json=asked, timeout=60, trust_env=False)
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["text"].startswith("话说天下大势，")
        finally:
            server.terminate()
