"""Corpora without cloze passages: two lines, Chinese, source code; and Chinese by the documented command."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.dataprep import PreparedData, prepare
from flows.settings import PipelineSettings, resolve
from flows.sources import Sources
from gpt2train.config import to_toml
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.report.step import REPORT, report
from tasks.train.step import validation_warning
from tests.processes import wait_for
from tests.tasks.corpus import Inline

CHINESE = (  # words of two letters
    "春天山上孩子河边老人今年稻田农民每天早上安静学生文章历史火车北京城市研究语言模型网页内容我们他们已经开始可以因为所以没有喜欢知道看见慢慢非常一起时候地方世界工作"
    "学校朋友电影音乐故事问题办法声音天气"
)


def two_lines(folder: Path) -> None:
    rows = [
        {"src": "www.nvidia.com", "text": "The quick brown fox", "type": "Eng", "id": "0", "title": "First Part"},
        {"src": "The Internet", "text": "jumps over the lazy dog", "type": "Eng", "id": "42", "title": "Second Part"},
    ]
    (folder / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def ten_chinese(folder: Path) -> None:
    draw = random.Random(0)
    words = [CHINESE[start : start + 2] for start in range(0, len(CHINESE), 2)]
    for number in range(10):
        sentences = ["".join(draw.choices(words, k=12)) + "的。" for _ in range(12)]
        (folder / f"{number}.txt").write_text("\n".join(sentences))


def source_code(folder: Path) -> None:
    for path in sorted((Path(__file__).parents[2] / "gpt2train" / "data").glob("[a-z]*.py")):
        (folder / f"{path.stem}.txt").write_text(path.read_text())


CORPORA: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "two lines": (two_lines, {"min_tokens": 0, "language": {"keep": ["any"]}}),
    "Chinese": (ten_chinese, {"min_tokens": 10, "language": {"keep": ["zh"]}}),
    "code": (source_code, {"language": {"keep": ["any"]}, "split": {"test": 0, "valid": 0}}),
}
TINY = {
    "steps": 2,
    "model": {"layers": 1, "heads": 2, "hidden": 16, "context": 8},
    "batch": {"micro_batch": 1, "global_batch": 2},
    "schedule": {"warmup": 1},
    "logging": {"interval": 1},
}


def settings_for(kind: str, folder: Path) -> PipelineSettings:
    """Settings of a pipeline on one of the corpora, which is written below `folder`."""
    write, clean = CORPORA[kind]
    (folder / "in").mkdir()
    write(folder / "in")
    given = {
        "documents": [str(folder / "in")],
        "output": str(folder / "out"),
        "clean": clean,
        "tokenizer": {"name": "train", "vocab_size": 300},
        "train": TINY,
        "launch": {"processes": 1},
        "evaluate": {"prompts": ["The"], "sampling": {"max_new_tokens": 2}},
    }
    return resolve(PipelineSettings, flags=given)


@pytest.fixture
def direct() -> Iterator[Inline]:
    """A runner for the recipes of the flows; each step is called without a Prefect task around it."""
    with Inline(workers=1) as runner:
        yield runner


def prepared(settings: PipelineSettings, runner: Inline, caplog: pytest.LogCaptureFixture) -> PreparedData:
    """Run the data recipe twice, and check that the second run repeats nothing."""
    data = prepare(Folder(settings.output), settings, Sources(settings), runner)
    assert data.lambada is None
    assert "no cloze passage in the" in caplog.text and "--lambada FILE" in caplog.text
    assert data.tokenize.outcome.facts["train_tokens"] > 0
    kept = {manifest.step: manifest.outcome.kept for manifest in data.manifests}
    assert kept["decontaminate"] == kept["clean"]
    assert prepare(Folder(settings.output), settings, Sources(settings), runner) == data
    return data


@pytest.mark.parametrize("kind", CORPORA)
def test_a_small_corpus_gives_tokens(
    kind: str, tmp_path: Path, direct: Inline, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(kind, tmp_path)
    data = prepared(settings, direct, caplog)
    cleaned = next(manifest.outcome for manifest in data.manifests if manifest.step == "clean")
    assert cleaned.kept == {"two lines": 2, "Chinese": 10}.get(kind, cleaned.seen)
    page = report(Folder(settings.output), data.manifests, settings.report, runner=direct)
    assert page.outcome.outputs[0].name == REPORT


def test_a_validation_split_below_one_sample_is_left_out(tmp_path: Path) -> None:
    settings = settings_for("two lines", tmp_path).train
    assert validation_warning({"valid_tokens": settings.model.context + 1}, settings) is None
    words = validation_warning({"valid_tokens": settings.model.context}, settings)
    assert words and "holds 8 tokens, fewer than one sample of 9" in words


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["two lines", "Chinese"])
def test_the_pipeline_succeeds_on_a_small_corpus(kind: str, tmp_path: Path) -> None:
    settings = settings_for(kind, tmp_path)
    (tmp_path / "run.toml").write_text(to_toml(settings))
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    command = [sys.executable, "-m", "flows.pipeline", "--config", str(tmp_path / "run.toml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "warning: no cloze passage in the" in done.stderr
    assert (Path(settings.output) / "report" / REPORT).exists()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0 and "warning: no cloze passage in the" in again.stderr


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
