"""`--refresh` after damage and kills: it goes on, and copies no damaged page."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder, need_manifest
from tasks.core.step import Step
from tasks.download.journal import Journal
from tasks.download.shard_writer import changes
from tasks.download.warc import MEMBER
from tests.tasks.download.fetch_helpers import pages_of, run, run_again
from tests.tasks.download.refreshed_site import Server, change, fill, plain, refresh, urls
from tests.tasks.forked_orders import order_server


def test_a_damaged_archive_is_not_copied(server: Server, tmp_path: Path) -> None:
    root = Folder(tmp_path)
    for name in ("1", "2"):
        server.put(f"/{name}", f"Page {name}.")
    first = run(root, server.site, [urls("/1", "/2")])
    path = tmp_path / "pages" / first.outputs[0].name
    data = path.read_bytes()
    server.put("/2", "Page 2 has changed.")
    for at in (5, 300, len(data) - 1):  # files of another size are fetched again
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RunError, match="is damaged; remove it"):
            refresh(root, server)
    path.write_bytes(data)
    assert refresh(root, server).outcome.kept == 2


def test_a_page_with_the_first_bytes_of_a_record_is_copied(server: Server, tmp_path: Path) -> None:
    """Bytes that do not compress are stored as they are: the archive seems to have one record more."""
    root = Folder(tmp_path)
    server.put("/1", "Page 1.")
    noise = random.Random(1).randbytes(80_000)
    body = b"<html>" + noise[:40_000] + MEMBER + noise[40_000:]
    server.site.handlers["/2"] = lambda h: h.answer(body, "text/html")
    first = run(root, server.site, [urls("/1", "/2")])
    assert first.outcome.kept == 2 and (root / "pages").read_bytes(first.outputs[0].name).count(MEMBER) == 4
    before = pages_of(root, first)
    server.put("/1", "Page 1 has changed.")
    second = refresh(root, server)
    assert changes(second)["unchanged"] == 1 and pages_of(root, second)[1] == before[1]


AT_PAGE = pytest.param((Journal, "add"), marks=pytest.mark.slow, id="page")


@pytest.mark.parametrize("moment", [AT_PAGE, pytest.param((Step, "commit_batch"), id="shard")])
def test_an_interrupted_refresh_goes_on(server: Server, tmp_path: Path, moment: tuple[type, str]) -> None:
    """The earlier download stays valid; no page that was answered is asked for again."""
    root, shards = Folder(tmp_path / "out"), fill(server)
    first = run(root, server.site, shards)
    shutil.copytree(tmp_path / "out", tmp_path / "straight")
    change(server)
    straight = refresh(Folder(tmp_path / "straight"), server)
    owner, name = moment
    original, calls = getattr(owner, name), []

    def cut(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == (1 if name == "commit_batch" else 5):
            raise KeyboardInterrupt if name == "commit_batch" else RuntimeError
        return original(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises((KeyboardInterrupt, RuntimeError)):
        patch.setattr(owner, name, cut)
        refresh(root, server)
    assert need_manifest(root / "pages") == first
    answered = {path for path, _, _ in server.asked}
    again = refresh(root, server)
    assert again.content == straight.content and changes(again) == changes(straight)
    asked = [path for path, _, _ in server.asked]
    assert len(asked) == len(set(asked)) < 12
    if name == "commit_batch":
        assert not answered & set(asked)


@pytest.mark.parametrize("around", ["commit", pytest.param("everything", marks=pytest.mark.exhaustive)])
def test_a_refresh_killed_at_any_instant_goes_on(server: Server, tmp_path: Path, around: str) -> None:
    """SIGKILL at writes and before removals: the next refresh has the outputs of one that was not killed."""
    root, kept = Folder(tmp_path / "out"), tmp_path / "kept"
    first = run(root, server.site, fill(server))
    change(server)
    shutil.copytree(tmp_path / "out", kept)
    straight = refresh(root, server)
    expected, wanted = set((root / "pages").files()), plain(pages_of(root, straight))
    with order_server("tests.tasks.download.killed_downloads") as send:

        def order(**more: Any) -> int:
            shutil.rmtree(tmp_path / "out")
            shutil.copytree(kept, tmp_path / "out")
            return int(send(root=root.url, address=server.site.address, again="refresh", **more)["status"])

        assert order(record=str(tmp_path / "record")) == 0
        counts = json.loads((tmp_path / "record").read_text())
        writes, removals = range(counts["writes"]), range(counts["removals"])
        assert len(writes) >= 8 and len(removals) >= 8
        if around == "commit":  # the manifest is the last write
            writes, removals = writes[-1:], removals[len(removals) // 2 : len(removals) // 2 + 1]
        kills: list[dict[str, Any]] = [
            {"write": number, "instant": instant} for number in writes for instant in ("between", "after")
        ]
        for kill in [*kills, *({"removal": number} for number in removals)]:
            assert order(**kill) == -9, kill
            stands = run_again(root, server.site.address)
            assert stands == first or stands.content == straight.content, kill
            again = refresh(root, server)
            if stands == first:  # else this was one more refresh, of pages that stand
                assert again.content == straight.content and changes(again) == changes(straight), kill
                assert set((root / "pages").files()) == expected, kill
            assert plain(pages_of(root, again)) == wanted, kill
