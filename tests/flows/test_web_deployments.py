"""Deployments that read from the web, as an operator runs them: server, pool, worker, `prefect deployment run`."""

import functools
import json
import re
import subprocess
import tarfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.mini_pipeline import MARK
from tests.flows.prefect_server import ROOT, PrefectServer, running_server
from tests.processes import environment_of, has_ended, wait_for
from tests.tasks.sources.archives import members, record, response
from tests.tasks.web_server import Handler, Site, running_site

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]
SECONDS = 240.0
LISTED = 120  # pages of the list that are there; with fewer no document may fall to the test split
CONCURRENCY = 16


def real_pages(real_data: Path) -> list[bytes]:
    """Pages of a manual, each with a text of its own."""
    with tarfile.open(real_data / "html_docs/html_docs_dev.tar.xz") as archive:
        found = [one for one in archive if "postgresql" in one.name and 10_000 < one.size < 60_000]
        files = [archive.extractfile(one) for one in sorted(found, key=lambda one: one.name)[:LISTED]]
        return [file.read() for file in files if file is not None]


@dataclass
class Operator:
    """An operator of deployments: a worker in a folder of its own, all deployments, and a site that all hosts lead to.

    Attributes:
        bpe: GPT-2's published vocabulary.
        pages: of the site, at /page/NUMBER.
    """

    server: PrefectServer
    folder: Path
    site: Site
    worker: psutil.Process
    bpe: Path
    pages: list[bytes]

    def start(self, deployment: str, *watch: str, **parameters: Any) -> "subprocess.CompletedProcess[str]":
        """`prefect deployment run … --param …`, and what it printed."""
        given = {
            "tokenizer": {"folder": str(self.bpe)},
            "connect_to": {"*": self.site.address},
            "download": {"allow_private": ["127.0.0.0/8"], "delay": 0, "concurrency": CONCURRENCY},
            **parameters,
        }
        flags = [part for name, value in given.items() for part in ("--param", f"{name}={json.dumps(value)}")]
        return self.server.prefect("deployment", "run", f"dataprep/{deployment}", *flags, *watch, seconds=SECONDS)

    def run(self, deployment: str, **parameters: Any) -> tuple[str, dict[str, Any]]:
        """Run a deployment and wait for its end as an operator does; the run's id and its last state."""
        done = self.start(deployment, "--watch", **parameters)
        run = id_of(done)
        state = self.state(run)
        assert (done.returncode == 0) == (state["type"] == "COMPLETED"), done.stdout
        return run, state

    def state(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.ask("GET", f"flow_runs/{run}")["state"]
        return found

    def shown(self, run: str) -> dict[str, Any]:
        """The artifacts of a run: text and data by key."""
        found = self.server.ask("POST", "artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {one["key"]: f"{one['description']}\n{one['data']}" for one in found}

    def lines(self, run: str) -> list[str]:
        """The log lines of a run."""
        found = self.server.ask("POST", "logs/filter", logs={"flow_run_id": {"any_": [run]}}, sort="TIMESTAMP_ASC")
        return [one["message"] for one in found]

    def cached(self, run: str) -> set[str]:
        """The steps that a run reports as cached."""
        found = self.server.ask("POST", "task_runs/filter", flow_runs={"id": {"any_": [run]}})
        return {one["name"] for one in found if one["state"]["name"] == "Cached"}

    def processes(self) -> list[psutil.Process]:
        """Running processes that the worker started."""
        mark = self.server.environment[MARK]
        found = [one for one in psutil.process_iter() if environment_of(one).get(MARK) == mark and not has_ended(one)]
        return [one for one in found if one.pid != self.worker.pid]

    def pages_asked(self) -> int:
        """Requests for pages so far, robots.txt and tdmrep.json not counted."""
        return sum(count for (_, path), count in self.site.hits.items() if path.startswith("/page/"))


def id_of(started: "subprocess.CompletedProcess[str]") -> str:
    found = re.search(r"UUID: (\S+)", started.stdout)
    assert found, started.stdout + started.stderr
    return found[1]


@pytest.fixture(scope="module")
def operator(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("operator")
    with running_server(folder / "prefect") as home, running_site() as site:
        pages = real_pages(real_data)
        assert len(pages) == LISTED
        for number, page in enumerate(pages):
            site.handlers[f"/page/{number}"] = functools.partial(Handler.answer, body=page)
        assert home.prefect("work-pool", "create", "gpt2train", "--type", "process").returncode == 0
        done = home.prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
        home.environment |= {MARK: uuid.uuid4().hex, "PYTHONPATH": str(ROOT)}
        work = folder / "work"
        work.mkdir()
        with home.worker("gpt2train", folder / "worker.log", work) as worker:
            yield Operator(home, work, site, worker, real_data / "bpe", pages)


def write_lists(operator: Operator) -> None:
    """The folder that dataprep/openwebtext takes its lists from."""
    lists = operator.folder / "urls/openwebtext"
    lists.mkdir(parents=True, exist_ok=True)
    urls = [f"http://host{number}.example.org/page/{number}" for number in range(LISTED)]
    dirt = ["http://www.youtube.com/watch?v=1", f"{urls[0]}#top", "http://a.example.org/a.pdf", "http://"]
    odd = ["http://odd.example.org/gone", "http://odd.example.org/image", "http://odd.example.org/inside"]
    (lists / "RS_2015-05.txt").write_text("\n".join(urls[:60] + dirt) + "\n")
    (lists / "RS_2015-06.txt").write_text("\n".join(urls[60:] + odd) + "\n")


def test_the_openwebtext_deployment_resumes_after_cancel(operator: Operator) -> None:
    asked = operator.pages_asked()
    _, missing = operator.run("openwebtext")
    assert missing["name"] == "Failed" and "no file matches urls/openwebtext/*" in missing["message"]
    assert missing["message"].endswith(f"relative to {operator.folder}")
    write_lists(operator)
    _, wrong = operator.run("openwebtext", tokenizer={"folder": "/nowhere"})
    assert wrong["name"] == "Failed" and "give tokenizer.folder with the published vocab.json" in wrong["message"]
    assert operator.pages_asked() == asked  # the error came before the crawl

    # Cancelled while pages come: each that came is kept, and asked for no second time.
    slow = {f"/page/{number}": operator.site.handlers[f"/page/{number}"] for number in range(LISTED)}
    for path, answer in slow.items():
        operator.site.handlers[path] = slowly(answer)
    run = id_of(operator.start("openwebtext"))
    came = r"download part: 0 of 1 batches, ([1-9]\d*) of 123 pages"
    wait_for(
        lambda: re.search(came, operator.shown(run).get("download-progress", "")), SECONDS, "the progress of pages"
    )
    assert operator.server.prefect("flow-run", "cancel", run).returncode == 0
    wait_for(lambda: operator.state(run)["type"] == "CANCELLED", SECONDS, "the run to be cancelled")
    wait_for(lambda: not operator.processes(), SECONDS, "the end of all processes")
    assert "| download | **stopped** |" in operator.shown(run)["steps"]
    operator.site.handlers.update(slow)

    # The site fails for one page, and then is back.
    operator.site.handlers[f"/page/{LISTED - 1}"] = lambda h: h.answer(b"", status=503)
    run, state = operator.run("openwebtext")
    assert state["name"] == "Completed", state["message"]
    hits = [operator.site.hits[f"host{number}.example.org", f"/page/{number}"] for number in range(LISTED - 1)]
    assert min(hits) == 1 and max(hits) <= 2 and hits.count(2) <= CONCURRENCY  # what was in flight alone
    shown, log = operator.shown(run), operator.lines(run)
    assert "| blacklist | 127 | 123 | " in shown["result"] and "| tokens |" in shown["result"]
    assert "| download | 123 | 119 | " in shown["result"] and "retry 1 page" in shown["result"]
    for reason in ("http error | 1", "not found | 1", "content type | 1", "not public address | 1", "retryable | 1"):
        assert reason in shown["download-counts"]
    assert "steps: 9 done, 2 cached" in shown["steps"]
    assert any(re.match(r"download +123 -> +119 ", line) for line in log)

    operator.site.handlers.update(slow)
    asked = operator.pages_asked()
    run, state = operator.run("openwebtext", retry_failed=True)
    assert state["name"] == "Completed" and operator.pages_asked() == asked + 1
    assert "| download | 123 | 120 | " in operator.shown(run)["result"]
    run, state = operator.run("openwebtext")
    assert state["name"] == "Completed" and operator.pages_asked() == asked + 1
    assert len(operator.cached(run)) == 11 and "steps: 11 cached" in operator.shown(run)["steps"]


def slowly(answer: Any) -> Any:
    def handler(h: Handler) -> None:
        time.sleep(4)
        answer(h)

    return handler


def test_the_commoncrawl_deployment_reads_archives(operator: Operator) -> None:
    _, missing = operator.run("commoncrawl")
    assert missing["name"] == "Failed" and "no file matches warcs/*.warc.gz" in missing["message"]
    folder = operator.folder / "warcs"
    folder.mkdir()
    for archive in range(2):
        records = [record("warcinfo", 0, b"software: none\r\n")]
        records += [response(number, operator.pages[number]) for number in range(archive * 60, archive * 60 + 60)]
        records += [response(90, operator.pages[0]), response(91, b"%PDF", content_type="application/pdf")]
        records += [response(92, operator.pages[1], status="404 Not Found")]
        (folder / f"CC-MAIN-{archive}.warc.gz").write_bytes(members(records))
    run, state = operator.run("commoncrawl")
    assert state["name"] == "Completed", state["message"]
    result = operator.shown(run)["result"]
    assert "| warcs | 126 | 122 | content type 2, http status 2 |" in result
    assert re.search(r"\| dedup \| \d+ \| \d+ \| exact duplicate 2\b", result)
    tokens = operator.folder / "out/commoncrawl/tokens/train/tokens.bin"
    assert tokens.stat().st_size > 0
    again, state = operator.run("commoncrawl")
    assert state["name"] == "Completed" and len(operator.cached(again)) == 10

    # The same archive at an address: other hosts may have what is asked for, or not.
    packed = (folder / "CC-MAIN-0.warc.gz").read_bytes()
    operator.site.handlers["/CC-MAIN-0.warc.gz"] = lambda h: h.answer(packed, "application/octet-stream")
    base = f"http://{operator.site.address}"
    run, state = operator.run("commoncrawl", warcs=[f"{base}/CC-MAIN-0.warc.gz"], output="out/away")
    assert state["name"] == "Completed", state["message"]
    assert "| warcs | 63 | 61 |" in operator.shown(run)["result"]
    _, gone = operator.run("commoncrawl", warcs=[f"{base}/gone"], output="out/away")
    assert gone["name"] == "Failed" and gone["message"].startswith(f"cannot read {base}/gone: no such file")

    refused = operator.start("commoncrawl", "--watch", warcz=["a"])
    assert refused.returncode == 1 and "not found on the deployment: 'warcz'" in refused.stdout
    refused = operator.start("commoncrawl", "--watch", warcs="warcs/*")
    assert refused.returncode == 1 and "field 'warcs'" in refused.stdout
