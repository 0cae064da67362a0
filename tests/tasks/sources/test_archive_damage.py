"""Damage to an archive of the user and to one of the download: the same records are named, and the others are read."""

from pathlib import Path

import pytest

from gpt2train.store.folder import Folder
from tasks.sources.index import read_pages
from tests.tasks.sources.archives import archive, faults_of, index, members, numbered, pages_of, response, url

RECORDS = [response(number, numbered(number) * (number + 1)) for number in range(4)]


def cut(data: bytearray) -> None:
    del data[-40:]


def flip(data: bytearray) -> None:
    data[len(members(RECORDS[:1])) + 60] ^= 0xFF


def wrong_length(data: bytearray) -> None:
    data[:] = members([*RECORDS[:1], response(1, b"<p>short", length=9999), *RECORDS[2:]])


def no_header(data: bytearray) -> None:
    data[:] = members([*RECORDS[:1], b"no record\r\n\r\n", *RECORDS[2:]])


@pytest.mark.parametrize("damage", [cut, flip, wrong_length, no_header])
def test_a_damaged_record_is_named_and_the_others_are_read(damage: object, tmp_path: Path) -> None:
    data = bytearray(members(RECORDS))
    assert callable(damage)
    damage(data)
    path = archive(tmp_path, bytes(data))
    lost = 3 if damage is cut else 1
    good = [url(number) for number in range(4) if number != lost]

    manifest = index(tmp_path / "out", path)
    assert [page.url for page in pages_of(tmp_path / "out", manifest)] == good
    [(_, reason, detail)] = faults_of(tmp_path / "out", manifest)
    assert reason == ("truncated_record" if damage is cut else "broken_record") and "a.warc.gz, byte " in detail

    fetched = list(read_pages(Folder(tmp_path), path.name))
    assert [page.url for page in fetched if not page.fault] == good
    [broken] = [page for page in fetched if page.fault]
    assert broken.fault.partition(", byte ")[2] == detail.partition(", byte ")[2] and broken.body == b""


def test_a_page_without_its_digest_is_named(tmp_path: Path) -> None:
    digests = [f"WARC-Payload-Digest: sha256:{'0' * 64}\r\nContent-Type: application/http".encode()]
    records = [RECORDS[0], RECORDS[1].replace(b"Content-Type: application/http", digests[0])]
    archive(tmp_path, members(records))
    one, other = read_pages(Folder(tmp_path), "a.warc.gz")
    assert not one.fault and other.fault.endswith("the page does not have the digest it was written with")
