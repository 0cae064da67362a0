"""Corpora without cloze passages: two lines, Chinese, source code; and Chinese by the documented command."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.dataprep import prepare
from flows.settings import PipelineSettings, resolve
from flows.sources import Sources
from gpt2train.config import to_toml
from gpt2train.settings import build
from gpt2train.store.folder import Folder
from tasks.report.step import REPORT, report
from tasks.train.step import validation_warning
from tests.docs.page_commands import run_line, served
from tests.object_stores import free_port
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


@pytest.mark.parametrize("kind", CORPORA)
def test_a_small_corpus_gives_tokens(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_for(kind, tmp_path)
    root = Folder(settings.output)
    with Inline(workers=1) as runner:
        data = prepare(root, settings, Sources(settings), runner)
        assert prepare(root, settings, Sources(settings), runner) == data
        page = report(root, data.manifests, settings.report, runner=runner)
    assert page.outcome.outputs[0].name == REPORT
    assert data.lambada is None
    assert "no cloze passage in the" in caplog.text and "--lambada FILE" in caplog.text
    assert data.tokenize.outcome.facts["train_tokens"] > 0
    made = {manifest.step: manifest.outcome for manifest in data.manifests}
    assert made["decontaminate"].kept == made["clean"].kept
    assert made["clean"].kept == {"two lines": 2, "Chinese": 10}.get(kind, made["clean"].seen)


def test_a_validation_split_below_one_sample_is_left_out(tmp_path: Path) -> None:
    settings = settings_for("two lines", tmp_path).train
    assert validation_warning({"valid_tokens": settings.model.context + 1}, settings) is None
    words = validation_warning({"valid_tokens": settings.model.context}, settings)
    assert words and "holds 8 tokens, fewer than one sample of 9" in words


PAGE = Path(__file__).parents[2] / "docs/data/languages.md"
SMALL = {  # a model and a vocabulary of a second
    "tokenizer": {"vocab_size": 600},
    "train": TINY | {"model": {"layers": 1, "heads": 2, "hidden": 16, "context": 64}},
    "launch": {"processes": 1},
    "evaluate": {"prompts": ["话说"], "sampling": {"max_new_tokens": 8}},
}


@pytest.mark.exhaustive
def test_chinese_texts_become_a_served_model_by_the_documented_command(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    novels = real_data / "eval/zh/corpus"
    if not novels.is_dir():
        pytest.skip(f"no Chinese corpus in {real_data}")
    found = re.search(r"^    (python -m flows\.pipeline --documents corpus/.*\n.*)$", PAGE.read_text(), re.MULTILINE)
    assert found is not None
    pipeline, serve = (line.strip() for line in found[1].replace("\\\n", " ").split("&&"))
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for path in sorted(novels.iterdir()):  # novels and poems, as `.txt` and JSON lines
        lines = path.read_text(encoding="utf-8").split("\n")[:150]
        (Path("corpus") / path.name).write_text("\n".join(lines), encoding="utf-8")
    passages = [{"text": "却说玄德在店中，忽听得门外有人说话"}, {"text": "大圣笑道：“我去也！”"}]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in passages]
    Path("cloze.jsonl").write_text("".join(lines), encoding="utf-8")
    Path("small.toml").write_text(to_toml(build(PipelineSettings, SMALL | {"documents": ["corpus/"]})))
    run_line(f"{pipeline} --config small.toml --lambada cloze.jsonl")
    [model] = Path().glob("out/zh/runs/*/model")
    scores = model.parent / "eval"
    cloze = json.loads((scores / "lambada.json").read_text())
    assert cloze["passages"] == 2
    assert cloze["definitions"]["lambada_openai"]["definition"].endswith("the last character")
    held_out = json.loads((scores / "perplexity.json").read_text())
    assert held_out["definition"].endswith("each character is a word") and held_out["bits_per_byte"] > 0
    assert held_out["words"] > 100
    assert json.loads((scores / "samples.json").read_text())["samples"][0]["prompt"] == "话说"
    assert "bits" in Path("out/zh/report/report.html").read_text()
    port = free_port()
    with served(f"{serve.rpartition(' ')[0]} {model} --port {port}"):
        asked = {"prompt": "话说天下大势，", "max_tokens": 8, "seed": 1, "echo": True}
        address = f"http://127.0.0.1:{port}/v1/completions"
        answer = httpx.post(address, json=asked, timeout=60, trust_env=False)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["text"].startswith("话说天下大势，")
