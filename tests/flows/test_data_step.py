"""The data step of docs/develop/add-a-data-step.md, installed as a plug-in outside of the repository."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.settings import DataprepSettings
from gpt2train.store.manifest import Folder, Manifest, need_manifest
from tasks.core.shards import read_rows
from tests.flows.conftest import Finished, Server
from tests.tasks.plugin_page import ROOT, install

PAGE = "add-a-data-step.md"
NAMES = ["texts", "clean", "cloze", "decontaminate", "dedup", "shuffle", "tokenizer", "tokenize", "report"]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder with the distribution of the page, as `pip install --target` leaves it."""
    (folder := tmp_path / "installed").mkdir()
    install(PAGE, folder)
    return folder


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Of a data flow over twelve documents of two hosts."""
    rows = [
        {
            "url": f"http://{'www.dropped' if number % 3 == 0 else 'kept'}.example/{number}",
            "text": f"Document {number} says that {number} brown foxes jump over {number + 1} lazy dogs. " * 3,
        }
        for number in range(12)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--documents", str(tmp_path / "texts.jsonl"), "--output", str(tmp_path / "out"), "--workers", "1"]
    given += ["--clean.min-tokens", "5", "--clean.language.keep", "any", "--clean.split.test", "0"]
    return [*given, "--tokenizer.name", "train", "--tokenizer.vocab-size", "300"]


def dataprep(*arguments: str, plugin: Path | None, **environment: str) -> str:
    path = os.pathsep.join(filter(None, [str(plugin or ""), os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    command = [sys.executable, "-m", "flows.dataprep", *arguments]
    environment = {**os.environ, **environment, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def steps_of(plan: str) -> dict[str, str]:
    lines = plan.partition("sources")[0].removeprefix("steps").splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


@pytest.mark.exhaustive
def test_the_flow_with_a_plug_in_and_without(
    plugin: Path, flags: list[str], tmp_path: Path, finished: Finished, server: Server
) -> None:
    root = Folder(tmp_path / "out")
    environment = finished.mini.environ(**server.environment)

    def manifests() -> dict[str, Manifest]:
        folders = ("clean", "decontaminated", "dedup", "shuffled", "tokens")
        return {name: need_manifest(root / name) for name in folders}

    dataprep(*flags, plugin=None, **environment)
    before = manifests()
    page = dataprep("--help-all", plugin=plugin)
    for said in ("Hosts whose documents are dropped.", "--drop-hosts.hosts", "--limits.drop-hosts"):
        assert said in page
    assert "drop_hosts" not in DataprepSettings.model_fields
    chosen = [*flags, "--drop-hosts.hosts", "dropped.example"]
    said = dataprep(*chosen, plugin=plugin, **environment)
    step = need_manifest(root / "data_steps/drop_hosts")
    assert (step.outcome.seen, step.outcome.kept, step.outcome.reasons) == (12, 8, {"dropped_host": 4})
    assert step.versions["drop-hosts"] == "1.0" and step.inputs["documents"] == before["clean"].identity
    [record] = step.outcome.rejected
    rejected = list(read_rows(root / step.folder, record.name))
    assert {row["detail"] for row in rejected} == {"www.dropped.example: dropped.example is listed"}
    assert manifests()["clean"] == before["clean"] and manifests()["shuffled"].outcome.kept == 8
    assert "drop_hosts" in said
    report = (tmp_path / "out/data-report/report.html").read_text()
    assert "drop_hosts" in report and "dropped host" in report
    # Again, with the same plug-in, and with a newer release of it.
    plan = steps_of(dataprep(*chosen, "--dry-run", plugin=plugin))
    assert list(plan) == [*NAMES[:2], "drop_hosts", *NAMES[2:]] and not any(
        "to run" in state for state in plan.values()
    )
    dataprep(*chosen, plugin=plugin, **environment)
    assert need_manifest(root / "data_steps/drop_hosts") == step
    install(PAGE, plugin, "1.1")
    plan = steps_of(dataprep(*chosen, "--dry-run", plugin=plugin))
    assert "cached" in plan["clean"] and plan["drop_hosts"] == "to run"
    # Without it, the chain is the one that it was.
    dataprep(*flags, plugin=None, **environment)
    assert manifests() == before
