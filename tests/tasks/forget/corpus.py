"""A corpus of 24 pages from every kind of source, made by the data recipe without Prefect."""

import json
from pathlib import Path
from typing import Any

from flows.dataprep import prepare
from flows.settings import DataprepSettings
from flows.sources import Sources
from tasks.core.storage import Folder
from tasks.core.worker_pool import adopt
from tasks.report.step import report
from tests.tasks.cloze.test_step import story
from tests.tasks.fault_injection import InlinePool, InlineRunner
from tests.tasks.sources.archives import members, response
from tests.tasks.web_server import Handler, Site

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


def serve(site: Site, folder: Path) -> dict[str, Any]:
    """Serve pages and write files of all kinds; return the settings that name them.

    `a.test/0` … `13` are stories, `14` is a copy of 0, `b.test/15` too short, `b.test/16` redirects to `a.test/1`,
    `b.test/17` mentions the address of `a.test/2`. The archive and the texts have stories of other pages.
    """

    def page(text: str) -> Any:
        def answer(handler: Handler) -> None:
            handler.answer(html(text), "text/html; charset=utf-8")

        return answer

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
