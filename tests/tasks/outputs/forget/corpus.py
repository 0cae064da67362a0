"""A corpus of 24 pages from every kind of source, made by the data recipe without Prefect, and files beside it."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flows.dataprep import prepare
from flows.settings import DataprepSettings
from flows.sources import Sources
from gpt2train.config import CONFIG_FILE, RunConfig, to_toml
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.suffix_index import build_index, index_root
from gpt2train.settings import build
from gpt2train.store.manifest import MANIFEST, Folder
from tasks.core.worker_pool import adopt
from tasks.report.step import report
from tests.tasks.cloze.test_step import story
from tests.tasks.corpus import InlinePool
from tests.tasks.fault_injection import InlineRunner
from tests.tasks.sources.archives import members, response
from tests.tasks.web_server import Handler, Site

PAGES = ("http://a.test/1", "http://a.test/3", "http://c.test/Sven", "http://a.example/0")  # to be removed
NAMES = ("Anna", "Bert", "Carl", "Dora", "Emil", "Fred", "Gina", "Hans", "Ines", "Jens", "Kira", "Lars", "Mona", "Nils")
SETTINGS: dict[str, Any] = {
    "workers": 1,
    "blacklist": {"shard_rows": 8},
    "download": {"delay": 0, "per_host": 8, "backoff": 0, "allow_private": ["127.0.0.0/8"]},
    "clean": {"split": {"test": 0.2}},
    "shuffle": {"rows_per_cell": 8},
    "tokenizer": {"name": "train", "vocab_size": 300},
}


def html(text: str) -> bytes:
    return f"<html><head><title>A tale</title></head><body><article><p>{text}</p></article></body></html>".encode()


def page(text: str) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(html(text), "text/html; charset=utf-8")


def serve(site: Site, folder: Path) -> dict[str, Any]:
    """Serve pages and write files of all kinds; return the settings that name them.

    `a.test/0` … `13` are stories, `14` is a copy of 0, `b.test/15` too short, `b.test/16` redirects to `a.test/1`,
    `b.test/17` mentions the address of `a.test/2`. The archive and the texts have stories of other pages.
    """

    texts = [*(story(name) for name in NAMES), f"{story(NAMES[0])} At last.", "too short"]
    for number, text in enumerate(texts):
        site.handlers[f"/{number}"] = page(text)
    site.handlers["/16"] = lambda handler: handler.redirect("http://a.test/1")
    site.handlers["/17"] = page(f"As http://a.test/2 says. {story('Otto')}")
    urls = [f"http://{'b' if number > 14 else 'a'}.test/{number}" for number in range(18)]
    (folder / "list.txt").write_text("\n".join([*urls, "http://a.test/gone", "http://a.test/2.pdf", urls[0]]) + "\n")
    responses = [response(number, html(story(name))) for number, name in enumerate(("Olga", "Paul"))]
    (folder / "a.warc.gz").write_bytes(members(responses))
    (folder / "page.html").write_bytes(html(story("Rosa")))
    rows = [json.dumps({"text": story(name), "url": f"http://c.test/{name}"}) for name in ("Sven", "Ulla")]
    (folder / "c.jsonl").write_text("\n".join([*rows, '{"text": " ", "url": "http://c.test/empty"}']) + "\n")
    return SETTINGS | {
        "urls": [str(folder / "list.txt")],
        "warcs": [str(folder / "a.warc.gz")],
        "documents": [str(folder / "page.html"), str(folder / "c.jsonl")],
        "connect_to": {"*.test": site.address},
    }


def run_flow(output: Path | str, settings: dict[str, Any]) -> set[str]:
    """Run the recipe; return the names of the steps that were done already."""
    made = DataprepSettings.model_validate(settings | {"output": str(output)})
    root = Folder(output)
    adopt(InlinePool(1))
    with InlineRunner(1) as runner:
        prepared = prepare(root, made, Sources(made), runner)
        runner.run_step(report, root, prepared.manifests, made.report, "data-report")
        return runner.skipped


def write_run(out: Path, context: int, batch: int, steps: int) -> Path:
    """Write the run folder of a training on the tokens of an output, with a checkpoint after every second step."""
    run = out / "runs/tiny-0123abcd"
    settings: dict[str, Any] = {
        "model": {"context": context, "layers": 1, "heads": 2, "hidden": 32},
        "batch": {"global_batch": batch, "micro_batch": batch},
        **{"seed": 7, "vocab": 300, "output": str(run), "schedule": {"warmup": 25}, "steps": steps + 10},
        "data": {"train": f"{out}/tokens/train/tokens"},
    }
    run.mkdir(parents=True)
    (run / CONFIG_FILE).write_text(to_toml(build(RunConfig, settings)))
    rows = [{"step": step, "tokens": step * batch * context} for step in range(1, steps + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    for step in range(2, steps + 1, 2):
        folder = run / f"checkpoints/step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    (run / "checkpoints/latest").write_text(f"step-{steps:08d}\n")
    return run


def plant(out: Path) -> dict[str, Path]:
    """Write files of other steps and of runs that have a text, and files that have none."""
    text = story("Dora").split(". ")[4]
    plugin, run = out / "data_steps/shout", out / "runs/small"
    for folder in (plugin, run / "eval", out / "inputs/0a1b/tokens", out / "token_index/0a", out / "quality"):
        folder.mkdir(parents=True)
    pq.write_table(pa.table({"url": ["http://a.test/3"], "body": [text.upper()]}), plugin / "part-00000.parquet")
    (plugin / MANIFEST).write_text((out / "clean" / MANIFEST).read_text().replace('"clean"', '"data_steps/shout"'))
    (out / "inputs/0a1b/tokens/notes.bin").write_bytes(b"\0\0http://a.test/3\0")
    (out / "token_index/0a/block-00000.keys").write_bytes(b"\0\1")
    with gzip.open(run / "eval/passages.json.gz", "wt") as file:
        json.dump({"passages": [text]}, file)
    (run / "samples.jsonl").write_text(json.dumps({"step": 1, "text": text}) + "\n" + json.dumps({"step": 2}) + "\n")
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    (out / "quality/votes.jsonl").write_text('{"url": "http://a.test/3", "vote": 1}\n{"url": "http://a.test/4"}\n')
    (out / "notes.html").write_text(f"<p>{text.replace(' ', '&nbsp;').replace('looked', '<b>looked</b>')}</p>")
    return {"run": run, "plugin": plugin}


def complete(out: Path) -> None:
    """Add to a corpus what users have beside it: an index of the tokens, a training on them, files with its texts."""
    prefix = out / "tokens/train/tokens"
    build_index(open_tokens(prefix), index_root(prefix))
    plant(out)
    run = write_run(out, context=16, batch=2, steps=40)
    for checkpoint in (run / "checkpoints").glob("step-*"):
        (checkpoint / "weights").mkdir()
        (checkpoint / "weights/model.bin").write_bytes(checkpoint.name.encode())
    (run / "checkpoints/best").write_text("step-00000038\n")
    (out / "contamination.json").write_text(json.dumps({"spans": [story("Bert")[:400]]}))


def words_in(out: Path, *names: str) -> dict[str, list[str]]:
    """Files in which the words of a story stand, read without the code under test; tokens are decoded by bytes."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        if path.suffix == ".parquet":
            data = json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
        for name in names:
            if f"traveller {name} looked".encode() in data:
                found.setdefault(name, []).append(str(path.relative_to(out)))
    return found
