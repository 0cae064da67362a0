"""The guides of the documentation: each command runs at a small size, in the order of the page."""

import contextlib
import gzip
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpt2train.monitoring.metrics import read_metrics
from tests.docs.page_commands import DOCS, SCORES, TRAIN, commands_of, copy_to, follow, run_line, tasks_of
from tests.flows.test_hub_flows import CARD, FINEWEB, numbered, parquet
from tests.hub_server import Hub, ask_only
from tests.object_stores import free_port

PAGES = {"benchmark.md", "chat.md", "fine-tune.md", "fineweb.md", "gpt2.md", "own-texts.md", "share.md"}
SMALL = f"{TRAIN} {SCORES} --clean.split.valid 0.2 --clean.split.test 0.2 --launch.processes 1 --workers 1"
VOCABULARY = "--tokenizer.vocab-size 400"


@pytest.fixture(scope="module")
def texts(open_data: Path) -> list[str]:
    with gzip.open(open_data / "text/speeches_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"][:3_000] for line in file]


def with_notes(folder: Path, texts: list[str]) -> Path:
    (folder / "notes").mkdir()
    for number, text in enumerate(texts):
        (folder / f"notes/{number}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def folder(texts: list[str], tmp_path: Path) -> Path:
    return with_notes(tmp_path, texts)


@pytest.fixture(scope="module")
def trained(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the pipeline, `out/`, which tests copy."""
    place = with_notes(tmp_path_factory.mktemp("trained"), texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run_line(f"python -m flows.pipeline --documents notes/ --output out {SMALL} {VOCABULARY}")
    return place / "out"


def block_of(page: str, language: str) -> str:
    text = (DOCS / "guides" / page).read_text(encoding="utf-8")
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M))


def printed_on(page: str) -> str:
    """The first block of a guide that shows what the command before it prints."""
    text = (DOCS / "guides" / page).read_text(encoding="utf-8")
    return text.partition("```\n\n```\n")[2].partition("```")[0]


def test_every_guide_is_followed() -> None:
    assert {path.name for path in (DOCS / "guides").glob("*.md")} == PAGES
    assert all(len(commands_of(DOCS / "guides" / name)) >= 3 for name in PAGES)


@pytest.mark.slow
def test_own_texts(folder: Path) -> None:
    outputs = follow(
        "guides/own-texts.md",
        folder,
        small={
            "python -m flows.pipeline": f"{SMALL} {VOCABULARY}",
            "gpt2train generate": "--max-new-tokens 4",
            "gpt2train serve": f"--port {free_port()}",
        },
    )
    assert any("The first thing" in output for output in outputs.values())
    assert (folder / "out/report/report.html").exists()


@contextlib.contextmanager
def published(name: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that has a repository, and that the client library asks."""
    with Hub() as hub:
        hub.put(name, files)
        ask_only(hub, monkeypatch)
        yield


@pytest.mark.exhaustive
def test_fineweb(folder: Path, texts: list[str], open_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_to(open_data / "bpe", folder / "bpe")
    passages = (open_data / "lambada/lambada_test.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:4]
    (folder / "lambada_test.jsonl").write_text("".join(passages))
    rows = [numbered(FINEWEB, number) | {"text": text} for number, text in enumerate(texts)]
    files = {f"sample/10BT/00{part}_00000.parquet": parquet(rows[part::2]) for part in range(2)}
    files["README.md"] = CARD.encode()
    with published("datasets/HuggingFaceFW/fineweb", files, monkeypatch):
        outputs = follow(
            "guides/fineweb.md",
            folder,
            small={
                "python -m flows.pipeline": f"{SMALL} --tokenizer.folder bpe",
                "python -m flows.dataprep": "--tokenizer.folder bpe --clean.split.valid 0.2 --clean.split.test 0.2",
                "python -m flows.pretrain": f"{TRAIN} --launch.processes 1",
                "python -m flows.evaluate": SCORES,
            },
        )
    plan = next(output for line, output in outputs.items() if "--dry-run" in line)
    assert "vocabulary 50,257" in plan
    assert "124,475,904 parameters" in next(output for line, output in outputs.items() if "gpt2train plan" in line)
    rows = pq.read_table(folder / "out/shuffled").to_pylist()
    assert {row["url"].split("/")[2] for row in rows} == {"example.org"}


@pytest.mark.exhaustive
def test_gpt2(folder: Path, texts: list[str], open_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_to(open_data / "bpe", folder / "bpe")
    tasks = folder / "evaluation/commonsense_reasoning"
    tasks.mkdir(parents=True)
    rows = [{"query": f"It was {n}", "choices": ["one", "two"], "gold": n % 2} for n in range(6)]
    (tasks / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shard = parquet({"text": text} for text in texts)
    files = dict.fromkeys(("shard_00007.parquet", "shard_01007.parquet"), shard)  # one of the first 500
    train = "--budget 1e13 --train.steps 3 --train.batch.micro-batch 2 --train.batch.global-batch 4 --train.device cpu"
    goal = "--train.validation.interval 2 --train.validation.tasks.every 1 --train.validation.stop-at.valid_loss 100"
    partial = "--tasks.partial --train.validation.tasks.partial --launch.processes 1 --train.schedule.warmup 1"
    with published("datasets/karpathy/fineweb-edu-100b-shuffle", files, monkeypatch):
        outputs = follow(
            "guides/gpt2.md",
            folder,
            small={
                "python -m flows.dataprep": "--tokenizer.folder bpe --clean.split.valid 0.2 --clean.split.test 0.2",
                "python -m flows.pretrain": f"{train} {goal} {partial}",
            },
            stand_ins={"prefect deployment run": lambda: None},
        )
    [plan] = [output for line, output in outputs.items() if "gpt2train plan" in line]
    shown = " ".join(printed_on("gpt2.md").split())
    assert "parameters" in shown
    for part in re.split(r", …|(?= cost: )|(?= goal: )", shown):
        assert part.strip() in " ".join(plan.split())
    [run] = (folder / "out/gpt2/runs").glob("modern-2-*")
    assert [row["step"] for row in read_metrics(run)] == [1, 2, 3]  # valid_loss is below 100, the score not above .2565
    assert json.loads((run / "eval/core.json").read_text())


@pytest.mark.exhaustive
def test_fine_tune(folder: Path, open_data: Path) -> None:
    def download() -> None:
        """A GPT-2 of the published vocabulary, as transformers writes it."""
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(vocab_size=50_257, n_positions=32, n_embd=16, n_layer=2, n_head=2)
        GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(open_data / "bpe" / name, folder / "gpt2" / name)

    rows = [{"prompt": f"{number} and one?", "answer": str(number % 2)} for number in range(40)]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classes = "".join(f"number {number}\t{number % 2}\n" for number in range(40))
    (folder / "classes.tsv").write_text(f"text\tlabel\n{classes}")
    for block, name in tasks_of("guides/fine-tune.md"):
        (folder / name).write_text(block)
    model = "--train.model.layers 2 --train.model.heads 2 --train.model.hidden 16 --train.model.context 32"
    follow(
        "guides/fine-tune.md",
        folder,
        small={
            "python -m flows.finetune": "--train.epochs 0.1 --launch.processes 1",
            "python -m flows.dataprep": "--clean.split.valid 0.2 --clean.split.test 0.2",
            "python -m flows.pretrain": f"{model} --train.epochs 0.02 --train.precision fp32 --launch.processes 1",
            "python -m flows.evaluate": SCORES,
            "gpt2train generate": "--max-new-tokens 4",
        },
        stand_ins={"hf download": download},
    )
    [run] = (folder / "out/runs").iterdir()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 10.7 < rows[0]["loss"] < 10.95  # log 50,257 = 10.82
    assert (run / "model/model.safetensors").exists()
    assert len(list(folder.glob("tuned/runs/*/model/model.safetensors"))) == 3


@pytest.mark.slow
def test_chat(trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_to(trained, folder / "out")
    rows = [block_of("chat.md", "json").replace("colour", f"colour, the {number}th") for number in range(40)]
    (folder / "talks.jsonl").write_text("".join(rows))
    for block, name in tasks_of("guides/chat.md"):
        (folder / name).write_text(block.replace("max_length = 128", "max_length = 32"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Name a colour.\nAnother one.\n"))
    without_gguf = {} if importlib.util.find_spec("gguf") else {"gpt2train export": lambda: None}
    outputs = follow(
        "guides/chat.md",
        folder,
        small={
            "python -m flows.finetune": "--train.epochs 1 --launch.processes 1",
            "gpt2train chat": "--max-new-tokens 4",
            "gpt2train serve": f"--port {free_port()}",
        },
        stand_ins=without_gguf,
    )
    plan = next(output for line, output in outputs.items() if line.startswith("gpt2train plan"))
    shown = printed_on("chat.md")
    assert plan.startswith(shown) and "124,475,904 parameters" in shown
    talk = next(output for line, output in outputs.items() if line.startswith("gpt2train chat"))
    assert talk.count("\n") >= 3
    assert without_gguf or (folder / "answers.gguf").exists()


@pytest.mark.exhaustive
def test_benchmark(trained: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed (extra peers)")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    copy_to(trained, folder / "out")
    copy_to(next((trained / "runs").glob("*/model")), folder / "model")
    passage, item = block_of("benchmark.md", "json").splitlines()
    (folder / "passages.jsonl").write_text(f"{passage}\n" * 3)
    (folder / "items.jsonl").write_text(f"{item}\n" * 2)
    (folder / "held-out.txt").write_text("Some words that no one trained on.\n")
    (folder / "mine.toml").write_text(block_of("benchmark.md", "toml"))
    (folder / "tasks").mkdir()
    (folder / "tasks/mine.yaml").write_text(block_of("benchmark.md", "yaml"))
    outputs = follow("guides/benchmark.md", folder, small={"python -m flows.dataprep": VOCABULARY})
    assert any("|mine" in output for output in outputs.values())
    assert len(json.loads((folder / "scores.json").read_text())["models"]) == 2


@pytest.mark.slow
def test_share(trained: Path, folder: Path) -> None:
    datasets, transformers = pytest.importorskip("datasets"), pytest.importorskip("transformers")
    copy_to(trained, folder / "out")
    uploads: list[str] = []
    without_gguf = {} if importlib.util.find_spec("gguf") else {"gpt2train export": lambda: None}
    follow(
        "guides/share.md",
        folder,
        small={"python -m flows.dataprep": VOCABULARY},
        stand_ins={"hf upload": lambda: uploads.append("uploaded")} | without_gguf,
    )
    assert len(uploads) == 2
    assert without_gguf or list((folder / "model").glob("*.gguf"))
    for place in ("model", "dataset"):
        assert (folder / place / "README.md").read_text().startswith("---\nlicense: ")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    ids = transformers.AutoTokenizer.from_pretrained(folder / "model")("The first", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=2).shape[1] > ids["input_ids"].shape[1]
    loaded = datasets.load_dataset(str(folder / "dataset"), split="train", cache_dir=str(folder / "cache"))
    assert loaded[0]["text"] and len(loaded) > 50
    columns = re.findall(r"`(\w+)`", (DOCS / "guides/share.md").read_text().partition("columns are")[2])[:7]
    assert columns == loaded.column_names


@pytest.mark.slow
def test_export(trained: Path, folder: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra gguf")
    copy_to(trained, folder / "out")
    outputs = follow("train/export.md", folder, small={})
    assert any(output.startswith("gguf: model-q8.gguf") for output in outputs.values())


@pytest.mark.slow
def test_passport(trained: Path, folder: Path) -> None:
    pytest.importorskip("model_signing", reason="needs the extra sign")
    copy_to(trained, folder / "out")
    for content, name in tasks_of("operate/passport.md"):
        (folder / name).write_text(content)
    sent: list[str] = []

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, cwd=folder, capture_output=True)

    stand_ins = {
        "gpt2train passport out --send": lambda: sent.append("sent"),
        "openssl ecparam": lambda: openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem"),
        "openssl ec -in": lambda: openssl("ec", "-in", "key.pem", "-pubout", "-out", "key.pub"),
    }
    outputs = follow("operate/passport.md", folder, small={}, stand_ins=stand_ins)
    assert any("signature: " in output for output in outputs.values()) and sent
    summary = (folder / "out/passport/eu-summary.md").read_text()
    assert "| name | A Laboratory |" in summary and "Given files" in summary
    assert (folder / "published/model/config.json").is_file() and (folder / "published/dataset/data").is_dir()


@pytest.mark.slow
def test_the_notebook_of_a_first_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells, in their order; shell lines as IPython reads them, at a small size."""
    notebook = json.loads((DOCS / "guides/first-model.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "3")
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str))
    names: dict[str, Any] = {}
    printed = ""
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] != "code" or "install" in cell["metadata"].get("tags", ()):
            continue
        python, _, shell = "".join(cell["source"]).partition("\n!")
        exec(compile(python, cell["id"], "exec"), names)
        if shell:
            small = f" {SMALL} {VOCABULARY}".replace("--train.steps 2", "") if "flows." in shell else ""
            printed = run_line(shell.strip().format(**names) + small)
    assert (tmp_path / "out/report/report.html").is_file()
    assert printed.startswith("The statement")
