"""Kills at each instant of a write, in each step: a resumed run gives the bytes of an undisturbed one."""

import contextlib
import dataclasses
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flows.mini_pipeline import hashes
from tests.tasks.cloze.test_step import story
from tests.tasks.forked_orders import order_server
from tests.tasks.kill_points import FOLDERS, INSTANTS
from tests.tasks.outputs.forget.corpus import NAMES, SETTINGS, html, page
from tests.tasks.sources.archives import members, response
from tests.tasks.web_server import Site, running_site

STEPS = (*FOLDERS, "warcs", "webpages", "texts")  # one recipe from every kind of source
# Fast is a step that writes for memory maps; one that reads the network and the dedup, which has many phases, are slow;
# the others share their code.
FAST = ("tokens",)
SLOW = ("pages", "dedup")
MARKED = [
    pytest.param(step, marks=[] if step in FAST else pytest.mark.slow if step in SLOW else pytest.mark.exhaustive)
    for step in STEPS
]


@dataclass
class Matrix:
    """A served URL list, an undisturbed run of it, and the process that executes orders."""

    settings: dict[str, Any]
    send: Callable[..., dict[str, Any]]
    errors: Path
    output: Path
    """Output of every run: the report contains the path."""
    undisturbed: Path
    """Copy of the output of the undisturbed run."""
    writes: dict[str, list[str]] = field(default_factory=dict)

    def order(self, **more: Any) -> int:
        settings = {**self.settings, "output": str(self.output)}
        return int(self.send(settings=settings, **more)["status"])

    def clear(self) -> None:
        shutil.rmtree(self.output, ignore_errors=True)

    def check(self, folder: str, number: int, instant: str) -> None:
        """Kill a run in this step at this instant; run again; compare every file."""
        self.clear()
        shutil.copytree(self.undisturbed, self.output)
        shutil.rmtree(self.output / folder)
        assert self.order(folder=folder, write=number, instant=instant) == -9, self.errors.read_text()
        assert self.order() == 0, self.errors.read_text()
        assert bytes_of(self.output) == bytes_of(self.undisturbed), f"killed {instant} write {number} of {folder}"


def bytes_of(output: Path) -> dict[str, str]:
    """Hash of every file except timings.jsonl, which has a row for each start of a step."""
    return {name: value for name, value in hashes(output).items() if name != "timings.jsonl"}


def make_list(site: Site, path: Path) -> None:
    """Write a list of three shards: stories, a copy, one that quotes the others, a short one, and failing URLs."""
    tales = [story(name) for name in NAMES]
    texts = [*tales, tales[0], " ".join(tale[:420] for tale in tales) + story("Tom", 30), "too short"]
    for number, text in enumerate(texts):
        site.handlers[f"/{number}"] = page(text)
    urls = [f"http://a.test/{number}" for number in range(len(texts))]
    path.write_text("\n".join([*urls[:5], "http://a.test/gone", "http://a.test/x.pdf", *urls[5:], urls[0]]) + "\n")


def make_files(folder: Path) -> dict[str, Any]:
    """Write an archive, pages and texts, each with an unusable one; the settings that name them."""
    loose = folder / "loose"
    loose.mkdir()
    responses = [response(number, html(story(name))) for number, name in enumerate(("Olga", "Paul"))]
    (folder / "a.warc.gz").write_bytes(members([*responses, response(9, b"gone", status="404 Not Found")]))
    (loose / "a.html").write_bytes(html(story("Rosa")))
    (loose / "b.html").write_text(" ")
    rows = [json.dumps({"text": story(name), "url": f"http://c.test/{name}"}) for name in ("Sven", "Ulla")]
    (loose / "c.jsonl").write_text("\n".join([*rows, "{cut"]) + "\n")
    return {"warcs": [str(folder / "a.warc.gz")], "documents": [str(loose)]}


@contextlib.contextmanager
def started(log: Path, seed: str = "0") -> Iterator[Callable[..., dict[str, Any]]]:
    with log.open("w") as errors, order_server("tests.tasks.fault_injection", errors, PYTHONHASHSEED=seed) as send:
        yield send


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("kills")
    with running_site() as site, started(folder / "errors.log") as send:
        make_list(site, folder / "list.txt")
        settings = {**SETTINGS, "clean": {"split": {"test": 0.3}}, **make_files(folder)}
        settings["urls"] = [str(folder / "list.txt")]
        settings["connect_to"] = {"*.test": site.address}
        matrix = Matrix(settings, send, folder / "errors.log", folder / "out", folder / "undisturbed")
        record = folder / "record.json"
        assert matrix.order(record=str(record)) == 0, matrix.errors.read_text()
        shutil.copytree(matrix.output, matrix.undisturbed)
        by_folder = defaultdict(list)
        for target in json.loads(record.read_text()):
            step, _, name = target.removeprefix(f"{matrix.output}/").partition("/")
            by_folder[step].append(name)
        matrix.writes = dict(by_folder)
        yield matrix


def test_the_matrix_knows_every_step(matrix: Matrix) -> None:
    assert set(matrix.writes) - {"timings.jsonl"} == set(STEPS)
    assert all(matrix.writes[folder][-1] == "_manifest.json" for folder in STEPS)
    counts = {folder: len(matrix.writes[folder]) for folder in STEPS}
    assert min(counts[folder] for folder in STEPS if folder != "report") >= 3, counts


@pytest.mark.parametrize("folder", MARKED)
def test_a_run_killed_at_each_instant_gives_the_same_bytes(matrix: Matrix, folder: str) -> None:
    """Before the first write, at the rename of one in the middle, and after the rename of the manifest."""
    writes = len(matrix.writes[folder])
    for instant, number in zip(INSTANTS, (0, writes // 2, writes - 1), strict=True):
        matrix.check(folder, number, instant)


@pytest.mark.exhaustive
def test_workers_killed_at_each_instant_leave_the_same_bytes(matrix: Matrix, tmp_path: Path) -> None:
    """Every stage with worker processes loses one."""
    matrix.clear()
    (tmp_path / "marks").mkdir()
    assert matrix.order(workers=2, marks=str(tmp_path / "marks")) == 0, matrix.errors.read_text()
    dead = [mark.name.rsplit("-", 1) for mark in (tmp_path / "marks").iterdir()]
    stages = {"warcs", "webpages", "texts", "clean", "cloze", "decontaminate", "dedup", "shuffle"}
    assert {name.partition("-")[0] for name, _ in dead} >= stages
    assert {instant for _, instant in dead} == set(INSTANTS)
    assert bytes_of(matrix.output) == bytes_of(matrix.undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "seed"), [(4, "4242")])
def test_workers_and_hash_seed_change_no_byte(matrix: Matrix, tmp_path: Path, workers: int, seed: str) -> None:
    matrix.clear()
    with started(tmp_path / "errors.log", seed) as send:
        other = dataclasses.replace(matrix, send=send, errors=tmp_path / "errors.log")
        assert other.order(workers=workers) == 0, other.errors.read_text()
    assert bytes_of(matrix.output) == bytes_of(matrix.undisturbed)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("folder", STEPS)
def test_a_run_killed_around_every_write_gives_the_same_bytes(matrix: Matrix, folder: str) -> None:
    writes = len(matrix.writes[folder])
    for number in range(0, writes, 1 + writes // 12):  # the dedup has many
        for instant in INSTANTS[1:]:
            matrix.check(folder, number, instant)
