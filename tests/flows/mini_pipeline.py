"""A small pipeline for the tests: some pages of the demo site, a tiny model, every real step."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows.demo.site_index import JOURNAL, REFERENCE, topics
from flows.demo.site_index import url_list as demo_list
from tests.processes import MAX_END_SECONDS, environment_of, has_ended, wait_until_ended

ODD = ("missing", "loop", "reading-notes", "essays/de", "typeset/cmd", "short-1", "private", "typeset/textwrap")
# Steps of the pipeline in order; the data flow has those up to the tokens.
STEPS = [
    *("blacklist", "download", "extract", "clean", "cloze", "decontaminate", "dedup", "shuffle", "tokenizer"),
    *("tokenize", "train", "merge", "evaluate", "report"),
]
MARK = "GPT2TRAIN_TEST_MARK"  # in the environment of a command, and so of all its children

SETTINGS = """
preset = "tiny"
workers = 2
[blacklist]
shard_rows = 20
[download]
per_host = 8
delay = 0
body_deadline = 3
backoff = 0.1
allow_private = ["127.0.0.0/8"]
[clean]
split = {seed = 2, valid = 0.1, test = 0.2}
[shuffle]
rows_per_cell = 16
[tokenizer]
vocab_size = 600
[train]
steps = 8
model = {layers = 1, heads = 2, hidden = 32, context = 64}
schedule.warmup = 2
validation = {interval = 4, samples = 8}
checkpoints.interval = 2
logging.interval = 1
[evaluate]
max_documents = 3
max_characters = 800
sampling.max_new_tokens = 8
[connect_to]
"""


def mini_urls() -> list[str]:
    """URLs of the language reference, and some bad ones."""
    wanted = [f"http://{REFERENCE}/topics/{name}.html" for name in topics()]
    lines = demo_list().split()
    odd = [url for url in lines if JOURNAL in url and any(name in url for name in ODD)]
    bad = [url for url in lines if "youtube" in url or url.endswith(".pdf") or url.startswith("ftp:")]
    return [*wanted[:40], *odd, *bad, *wanted[40:], wanted[0]]


@dataclass
class Mini:
    """Environment of commands: URL list and settings, a Prefect home, and a mark by which children are found."""

    folder: Path
    connect_to: Mapping[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "urls.txt").write_text("".join(f"{url}\n" for url in mini_urls()))
        hosts = "".join(f'"{host}" = "{address}"\n' for host, address in self.connect_to.items())
        (self.folder / "mini.toml").write_text(f"urls = ['{self.folder / 'urls.txt'}']\n{SETTINGS}{hosts}")
        self.mark = uuid.uuid4().hex

    @property
    def home(self) -> Path:
        return self.folder / "prefect"

    def another(self, folder: Path) -> "Mini":
        """A copy for the same site with its database: creating the tables takes 11 s of CPU time."""
        other = Mini(folder, self.connect_to)
        shutil.copytree(self.home, other.home)
        return other

    def command(self, flow: str, *flags: str) -> list[str]:
        return [sys.executable, "-m", f"flows.{flow}", "--config", str(self.folder / "mini.toml"), *flags]

    def environ(self, **more: str) -> dict[str, str]:
        home = {"PREFECT_HOME": str(self.home), MARK: self.mark}
        return {**os.environ, **home, **self.environment, **more}

    def run(self, flow: str, *flags: str, timeout: float = 600, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(flow, *flags), env=self.environ(**more), capture_output=True, text=True, timeout=timeout
        )

    def start(self, flow: str, *flags: str, **more: str) -> "subprocess.Popen[str]":
        """Start a flow and return at once; its output goes to a file, which cannot fill up as a pipe can."""
        with (self.folder / "started.log").open("w") as log:
            pipes: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "preexec_fn": _restore_sigint}
            return subprocess.Popen(self.command(flow, *flags), env=self.environ(**more), text=True, **pipes)

    def children(self) -> list[psutil.Process]:
        found = psutil.process_iter()
        return [one for one in found if environment_of(one).get(MARK) == self.mark and not has_ended(one)]

    def ranks(self) -> list[psutil.Process]:
        return [process for process in self.children() if "RANK" in environment_of(process)]

    def kill(self, command: "subprocess.Popen[str]") -> None:
        theirs = self.children()
        command.kill()
        command.wait()
        wait_until_ended(theirs)
        self.wait_for_the_end()

    def wait_for_the_end(self, seconds: float = MAX_END_SECONDS) -> None:
        """Wait until no process of these commands is left; fail with those that are."""
        while running := self.children():  # what they start while they end is waited for as well
            wait_until_ended(running, seconds)


def _restore_sigint() -> None:
    """A test run in the background may have been started with SIGINT ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def lines_of(output: str) -> Iterator[tuple[str, str]]:
    for line in output.splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest
