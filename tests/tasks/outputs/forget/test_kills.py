"""A removal killed by SIGKILL at any change of a file: nothing trusts what it left, and the next call completes it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from flows.orchestration.run_context import check_output
from flows.pretrain import pretrain
from flows.settings import DataprepSettings, PretrainFlowSettings
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.errors import UserError
from gpt2train.quality.documents import sample_documents
from gpt2train.store.output import MANIFEST, Folder, Manifest
from gpt2train.store.removal import PENDING
from tasks.core.forgotten import FORGOTTEN
from tasks.dedup.previous_runs import open_previous
from tasks.dedup.settings import DedupSettings
from tasks.outputs.browse.server import browse_routes
from tasks.outputs.forget.command import forget
from tasks.outputs.passport.publish import contents_of
from tasks.outputs.passport.write import write_passport
from tasks.outputs.verify.command import verify_output
from tests.flows.mini_pipeline import hashes
from tests.object_stores import store_server
from tests.tasks.forked_orders import order_server
from tests.tasks.outputs.forget.corpus import PAGES, complete, words_in

GONE = ("Bert", "Dora", "Sven", "Olga")  # in the stories of the pages


def pretrain_elsewhere(out: Path) -> None:
    settings = PretrainFlowSettings(data=str(out), output=str(out.parent / "elsewhere"))
    pretrain.planned(settings).check()


# What reads an output, beginning with the flows in it.
READERS: dict[str, Callable[[Path], Any]] = {
    "flow": lambda out: check_output(DataprepSettings(output=str(out))),
    "dry run": lambda out: check_output(DataprepSettings(output=str(out), dry_run=True)),
    "pretrain": pretrain_elsewhere,
    "train": lambda out: open_tokens(out / "tokens/train/tokens"),  # as do trainer, index and traces
    "verify": lambda out: verify_output(str(out), batches=0),
    "browse": lambda out: browse_routes(Folder(out)),
    "label": lambda out: sample_documents(out, 0),
    "passport": lambda out: write_passport(Folder(out)),
    "publish": lambda out: contents_of(str(out), dataset=True),
    "previous": lambda out: open_previous(DedupSettings(previous=(f"{out}/dedup",)), version=1),
    "plan": lambda out: forget(PAGES, output=str(out)),
}


class Killed:
    """A whole output, a process that removes pages from it, and the result of a removal that is not killed."""

    def __init__(self, corpus: Path, folder: Path, order: Callable[..., dict[str, Any]]) -> None:
        self.out, self.kept, self._order = folder / "out", folder / "kept", order
        shutil.copytree(corpus, self.out)
        complete(self.out)
        shutil.copytree(self.out, self.kept)
        self.before = self.state()
        done = self.remove()
        assert done["status"] == 0, done
        self.count, self.kinds, self.after = done["instants"], done["kinds"], self.state()

    def remove(self, **more: Any) -> dict[str, Any]:
        return self._order(output=str(self.out), targets=PAGES, delete=True, **more)

    def prepare(self, settings: dict[str, Any]) -> dict[str, Any]:
        return self._order(output=str(self.out), settings=settings)

    def restore(self) -> None:
        shutil.rmtree(self.out)
        shutil.copytree(self.kept, self.out)

    def state(self) -> dict[str, str]:
        folders = (path.relative_to(self.out).as_posix() for path in self.out.rglob("*") if path.is_dir())
        return {name: one for name, one in hashes(self.out).items() if name != ".lock"} | dict.fromkeys(folders, "")

    def check(self, instant: int) -> None:
        self.restore()
        assert self.remove(last=instant)["status"] == -9
        left = self.state()
        if (self.out / PENDING).exists():
            for name, read in READERS.items():
                with pytest.raises(UserError, match="was interrupted"):
                    read(self.out)
                assert self.state() == left, name
            if instant % 3 == 0:  # a second kill, earlier in the work that is left
                self.remove(last=instant // 2)
        else:
            drafts = {name for name in left if name.startswith(".tmp-")}
            assert {name: one for name, one in left.items() if name not in drafts} in (self.before, self.after)
        assert self.remove()["status"] == 0
        assert self.state() == self.after


@pytest.fixture(scope="module")
def killed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    with order_server("tests.tasks.outputs.forget.killed") as order:
        yield Killed(corpus, tmp_path_factory.mktemp("killed"), order)


@pytest.mark.slow
def test_a_whole_output_is_forgotten(killed: Killed) -> None:
    """The instants are those of every kind of change, and the result has no word of the pages."""
    changed = {name.partition("/")[0] for name in killed.before if killed.after.get(name) != killed.before[name]}
    assert changed >= {
        *("urls", "pages", "warcs", "texts", "documents", "clean", "evalset", "decontaminated", "dedup", "shuffled"),
        *("tokenizer", "tokens", "token_index", "data-report", "data_steps", "inputs", "quality", "runs"),
        *("notes.html", "contamination.json"),
    }
    assert {name.split("/")[1] for name in killed.before if "/_rows/" in name} == {"_rows"}
    checkpoints = "runs/tiny-0123abcd/checkpoints/"
    assert any(name.startswith(checkpoints) for name in set(killed.before) - set(killed.after))
    assert killed.kinds.keys() >= {"open", "fsync", "torn", "os.rename", "os.remove", "os.rmdir"}
    killed.restore()
    assert set(words_in(killed.out, *GONE)) == set(GONE)
    assert killed.remove()["status"] == 0
    assert words_in(killed.out, *GONE) == {}


FEW = pytest.param("few", marks=pytest.mark.slow)
ALL = pytest.param("all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(7200)])


@pytest.mark.parametrize("instants", [FEW, ALL])
def test_a_removal_killed_at_any_instant_is_completed(killed: Killed, instants: str) -> None:
    """Few are the first changes, until the list and the plan are on disk; ones amid removals; and the last ones."""
    few = (0, 5, killed.count // 4, killed.count // 2, killed.count - 12, killed.count - 1)
    for instant in few if instants == "few" else range(killed.count):
        killed.check(instant)


def taken_back(killed: Killed, settings: dict[str, Any], instant: int) -> list[str]:
    """Files with text of removed pages, after a data flow in place of the rest of a removal, and one without the mark.

    The first flow refuses, and runs once the removal is complete.
    """

    def kill() -> bool:
        killed.restore()
        assert killed.remove(last=instant)["status"] == -9
        return (killed.out / PENDING).exists()  # otherwise nothing has been removed, or all

    if not kill():
        return []
    left, refused = killed.state(), killed.prepare(settings)
    assert refused["status"] == 1 and "gpt2train forget --yes" in refused["error"]
    assert killed.state() == left
    assert killed.remove()["status"] == 0
    assert killed.prepare(settings)["status"] == 0
    found = [file for files in words_in(killed.out, *GONE).values() for file in files]
    if kill() and (killed.out / FORGOTTEN).exists():
        (killed.out / PENDING).unlink()  # which only a user can do; other files keep their texts then
        assert killed.prepare(settings)["status"] == 0
        found += [file for files in words_in(killed.out, *GONE).values() for file in files if is_made(file)]
    return found


def is_made(file: str) -> bool:
    """Return True for a file of the steps that the flow makes of pages."""
    return file.partition("/")[0] not in ("runs", "inputs", "quality", "data_steps", "notes.html", "contamination.json")


@pytest.mark.parametrize("instants", [FEW, ALL])
def test_a_flow_after_a_kill_takes_no_page_back(killed: Killed, settings: dict[str, Any], instants: str) -> None:
    for instant in (killed.count // 2,) if instants == "few" else range(0, killed.count, 5):
        assert taken_back(killed, settings, instant) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_a_removal_in_an_object_store_that_is_killed_is_completed(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs = pytest.importorskip("s3fs")
    with store_server("s3") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        store = s3fs.S3FileSystem(endpoint_url=variables["AWS_ENDPOINT_URL"], use_listings_cache=False)
        store.mkdir("bucket")

        def state(name: str) -> dict[str, bytes]:
            store.invalidate_cache()
            paths = [path for path in store.find(f"bucket/{name}") if not path.endswith("/.lock")]
            return {path.partition(f"{name}/")[2]: store.cat_file(path) for path in paths}

        with order_server("tests.tasks.outputs.forget.killed") as order:
            store.put(f"{corpus}/", "bucket/straight/", recursive=True)
            done = order(output="s3://bucket/straight", targets=PAGES, store=True)
            assert done["status"] == 0, done
            after, count = state("straight"), done["instants"]
            assert count > 30
            for instant in (3, count // 3, count // 2, 2 * count // 3, count - 2):
                name = f"killed-{instant}"
                store.put(f"{corpus}/", f"bucket/{name}/", recursive=True)
                options = {"output": f"s3://bucket/{name}", "targets": PAGES, "store": True}
                assert order(**options, last=instant)["status"] == -9
                with pytest.raises(UserError, match="was interrupted"):
                    verify_output(str(options["output"]), batches=0)
                assert order(**options)["status"] == 0
                assert state(name) == after, instant
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    rows = [Manifest.model_validate_json(data) for path, data in after.items() if path.endswith(MANIFEST)]
    assert {"download", "warcs", "texts"} <= {one.step for one in rows}
