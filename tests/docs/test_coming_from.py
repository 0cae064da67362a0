"""The pages for readers of other systems' tutorials: each command runs at a small size, in the order of the page."""

import contextlib
import gzip
import io
import json
import random
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from flows.demo import demo_site
from tests.docs.page_commands import DOCS, SCORES, TRAIN, commands_of, copy_to, follow, run_line, tasks_of
from tests.flows.mini_pipeline import mini_urls
from tests.gpt2train.convert.megatron_trees import make_model, write_tree
from tests.object_stores import free_port

PAGES = {"colossalai-booster.md", "colossalai-zero.md", "cpm.md", "megatron-lm.md", "oneflow.md"}


@pytest.fixture(scope="session")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Options by which a crawl visits the demo site in place of the pages of a list."""
    with demo_site() as site:
        file = tmp_path_factory.mktemp("crawl") / "crawl.toml"
        hosts = "".join(f'"{host}" = "{address}"\n' for host, address in site.connect_to.items())
        file.write_text(
            "workers = 2\n[download]\nper_host = 8\ndelay = 0\nbody_deadline = 3\nbackoff = 0.1\n"
            f'allow_private = ["127.0.0.0/8"]\n[clean.split]\nvalid = 0.1\ntest = 0.1\n[connect_to]\n{hosts}'
        )
        yield f"--config {file}"


@pytest.fixture
def folder(open_data: Path, tmp_path: Path) -> Path:
    """The work folder of a reader: texts, GPT-2's vocabulary, passages of LAMBADA."""
    copy_to(open_data / "bpe", tmp_path / "bpe")
    with gzip.open(open_data / "text/speeches_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:2_000] for line in file]
    (tmp_path / "train_data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    passages = (open_data / "lambada/lambada_test.jsonl").read_text(encoding="utf-8").splitlines()[:4]
    (tmp_path / "lambada_test.jsonl").write_text("\n".join(passages) + "\n")
    return tmp_path


def test_every_page_is_followed() -> None:
    assert {path.name for path in (DOCS / "coming-from").glob("*.md")} == PAGES | {"names.md"}
    assert all(commands_of(DOCS / "coming-from" / name) for name in PAGES)


@pytest.mark.exhaustive
def test_megatron_lm(folder: Path, crawl: str) -> None:
    (folder / "urls").mkdir()
    (folder / "urls/RS_2011-01.txt").write_text("".join(f"{url}\n" for url in mini_urls()[:50]))
    model = {name: 0.02 * one for name, one in make_model(50_304, 2, 2, hidden=16, context=32).items()}
    write_tree(folder / "345m", model, 2, version=0, old=True, tracker="release")
    port = free_port()
    outputs = follow(
        "coming-from/megatron-lm.md",
        folder,
        small={
            "python -m flows.dataprep": f"{crawl} --tokenizer.folder bpe",
            "python -m flows.pretrain": f"{TRAIN} --train.model.max-positions 32",
            "gpt2train serve": f"--port {port}",
        },
        replaced={
            "--tokenizer gpt2": "--tokenizer bpe",
            "localhost:5000": f"localhost:{port}",
            "--heads 16": "--heads 2",
        },
    )
    assert "megatron_strict" in "".join(outputs.values())
    [run] = (folder / "out-tp2-pp2/runs").iterdir()
    assert tomllib.loads((run / "config.toml").read_text())["parallel"]["pp"] == 2


@pytest.mark.exhaustive
def test_colossalai_zero(folder: Path, crawl: str) -> None:
    (folder / "URLs").mkdir()
    (folder / "URLs/RS_2011-01.txt").write_text("".join(f"{url}\n" for url in mini_urls()[:50]))
    outputs = follow(
        "coming-from/colossalai-zero.md",
        folder,
        small={
            "python -m flows.dataprep": f"{crawl} --tokenizer.folder bpe",
            "python -m flows.pretrain": f"{TRAIN} --train.epochs 0",
            "python -m flows.evaluate": SCORES,
        },
        replaced={"--launch.processes 4": "--launch.processes 2"},
    )
    assert "ZeRO 3" in "".join(outputs.values())
    for output, offloaded in (("out", True), ("out-4-gpus", False)):
        [file] = folder.glob(f"{output}/runs/*/config.toml")
        assert tomllib.loads(file.read_text())["parallel"]["cpu_offload"] == offloaded


@pytest.mark.exhaustive
def test_oneflow(folder: Path) -> None:
    page = (DOCS / "coming-from/oneflow.md").read_text(encoding="utf-8")
    (folder / "my-corpus.json").write_text("".join(re.findall(r"^\{.*\n", page, re.M)))
    with tarfile.open(folder / "openwebtext.tar.xz", "w:xz") as archive:
        entry = tarfile.TarInfo("openwebtext/0.txt")
        entry.size = 9
        archive.addfile(entry, io.BytesIO(b"Some text"))
    with contextlib.chdir(folder):
        run_line("gpt2train data tokenize train_data.json --output gpt_sample_dataset_text_document --tokenizer bpe")
    shutil.rmtree(folder / "tokenizer")  # their files come without one

    def shrink() -> None:
        settings = tomllib.loads((folder / "run.toml").read_text())
        settings["steps"] = 2
        settings["precision"] = "fp32"
        settings["model"] |= {"layers": 4, "heads": 2, "hidden": 16, "context": 32}
        settings["batch"] |= {"micro_batch": 1, "global_batch": 4}
        settings["parallel"] |= {"tp": 1, "pp": 2}
        settings["schedule"] |= {"decay_steps": 2, "warmup_fraction": 0.5}
        (folder / "run.toml").write_text(tomli_w.dumps(settings))

    follow(
        "coming-from/oneflow.md",
        folder,
        small={"python -m flows.pretrain": TRAIN},
        replaced={
            "--tokenizer gpt2 ": "--tokenizer bpe ",
            "--tokenizer gpt2-files": "--tokenizer bpe",
            "--preset oneflow-1x8": "--preset oneflow-1x8 --train.parallel.tp 2",
            "--launch.processes 8": "--launch.processes 2",
            "--nnodes 4 --nproc-per-node 8": "--nnodes 1 --nproc-per-node 2",
            "--master-addr 10.0.0.1 --master-port 29500": f"--master-addr 127.0.0.1 --master-port {free_port()}",
        },
        afterwards={"gpt2train config": shrink},
    )
    assert len(list(folder.glob("out/runs/*/checkpoints/step-00000002"))) == 3


@pytest.mark.exhaustive
def test_colossalai_booster(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")

    def weights() -> None:
        config = transformers.GPT2Config(vocab_size=50_257, n_positions=128, n_embd=16, n_layer=2, n_head=2)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
        for name in ("vocab.json", "merges.txt"):
            shutil.copyfile(folder / "bpe" / name, folder / "gpt2" / name)

    def pairs() -> None:
        (folder / "glue/mrpc").mkdir(parents=True)
        for part, count in (("train", 40), ("validation", 12), ("test", 12)):
            rows = [
                {"sentence1": f"{number} one", "sentence2": f"{number} two", "label": number % 2, "idx": number}
                for number in range(count)
            ]
            pq.write_table(pa.Table.from_pylist(rows), folder / f"glue/mrpc/{part}-00000-of-00001.parquet")

    for content, name in tasks_of("coming-from/colossalai-booster.md"):
        (folder / name).write_text(content)
    follow(
        "coming-from/colossalai-booster.md",
        folder,
        small={"python -m flows.finetune": "--train.epochs 1 --train.precision fp32 --launch.processes 2"},
        stand_ins={"hf download openai-community/gpt2": weights, "hf download nyu-mll/glue": pairs},
    )
    [run] = (folder / "out/runs").glob("classification-*")
    config = tomllib.loads((run / "config.toml").read_text())
    assert (config["parallel"]["pp"], config["parallel"]["zero"], config["model"]["labels"]) == (2, 1, 2)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(run / "model")
    assert loaded.config.num_labels == 2


@pytest.mark.exhaustive
def test_cpm(folder: Path) -> None:
    (folder / "corpus").mkdir()
    letters = "春天山上孩子河边老人今年稻田农民每天早上安静学生文章历史火车北京城市研究语言模型网页内容"
    draw = random.Random(0)
    for number in range(60):
        sentences = ["".join(draw.choices(letters, k=16)) + "。" for _ in range(12)]
        (folder / f"corpus/{number}.txt").write_text("".join(sentences), encoding="utf-8")
    (folder / "small.toml").write_text(
        "[train.model.options]\nencoder_layers = 1\ndecoder_context = 24\nhead_dim = 8\ninner = 32\n"
    )
    follow(
        "coming-from/cpm.md",
        folder,
        small={
            "python -m flows.dataprep": "--tokenizer.vocab-size 300",
            "python -m flows.pretrain": TRAIN.replace("--train.batch.global-batch 4", "--train.batch.global-batch 8"),
            "python -m flows.pipeline": f"{TRAIN} {SCORES} --config small.toml --launch.processes 2 "
            "--tokenizer.vocab-size 500 --tokenizer.sentinels 190",
            "gpt2train generate": "--max-new-tokens 4",
        },
    )
    [run] = (folder / "t5/runs").iterdir()
    assert (run / "model/model.safetensors").exists()
