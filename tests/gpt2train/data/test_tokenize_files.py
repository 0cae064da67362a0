"""`gpt2train data tokenize`: Megatron's bytes, any workers and packing, bad rows named, resumable; Parquet."""

import gzip
import io
import json
import lzma
import re
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.settings import DataprepSettings
from gpt2train.cli import app, run_command
from gpt2train.data import documents, tokenize_files
from gpt2train.data.documents import Rejected, Row, read_rows, read_text
from gpt2train.data.indexed import IndexedDataset
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer, save_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from tests.gpt2train.data.test_indexed import plain_pair
from tests.gpt2train.data.test_packed_file import SKIPPABLE, zstd
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.gpt2train.indexed_writer import sequences

# The sample of OneFlow's tutorial, as it stands there.
SAMPLE = """{"src": "www.nvidia.com", "text": "The quick brown fox", "type": "Eng", "id": "0", "title": "First Part"}
{"src": "The Internet", "text": "jumps over the lazy dog", "type": "Eng", "id": "42", "title": "Second Part"}
"""


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    save_tokenizer(folder, *small_tables())
    return folder


def tokenize(bpe: Path, output: Path, *arguments: object) -> int:
    flags = ["--output", str(output), "--tokenizer", str(bpe)]
    return run_command(app, ["data", "tokenize", *map(str, arguments), *flags])


@pytest.mark.parametrize("place", [".", "x/.."])
def test_a_prefix_is_no_folder(
    bpe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text('{"text": "a b"}\n')
    assert tokenize(bpe, Path("a"), "a.json", "--workers", 1) == 0
    kept = sorted(tmp_path.iterdir())
    for flag in ("--output", "target"):
        command = ["tokenize", "a.json", "--output", place, "--tokenizer", str(bpe)]
        assert run_command(app, ["data", *(command if flag == "--output" else ["convert", "a", place])]) == 2
        assert f"is a folder; give {flag} a name in it" in capfd.readouterr().err
    assert sorted(tmp_path.iterdir()) == kept


def texts_of(bpe: Path, prefix: Path) -> list[str]:
    tokenizer = load_tokenizer(bpe)
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in sequences(IndexedDataset(prefix))]


def rejected(prefix: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{prefix}.rejected.jsonl").read_text().splitlines()]


def megatron_files(bpe: Path, texts: list[str], append_eod: bool) -> tuple[bytes, bytes]:
    """The pair as Megatron-LM writes it."""
    tokenizer = load_tokenizer(bpe)
    end = [tokenizer.token_to_id("<|endoftext|>")] if append_eod else []
    return plain_pair([ids + end for ids in encode_ordinary(tokenizer, texts)], "H", 8)


@pytest.mark.parametrize("append_eod", [True, False])
def test_the_sample_of_the_tutorial_gives_the_bytes_of_megatron(bpe: Path, tmp_path: Path, append_eod: bool) -> None:
    (tmp_path / "sample.json").write_text(SAMPLE)
    output = tmp_path / "out/sample"
    flags = ["--append-eod"] if append_eod else []
    assert tokenize(bpe, output, tmp_path / "sample.json", "--json-key", "text", "--workers", 1, *flags) == 0
    expected = megatron_files(bpe, ["The quick brown fox", "jumps over the lazy dog"], append_eod)
    assert (Path(f"{output}.bin").read_bytes(), Path(f"{output}.idx").read_bytes()) == expected
    assert tokenizer_hash(tmp_path / "out/tokenizer") == tokenizer_hash(bpe)
    assert sorted(path.name for path in output.parent.iterdir()) == ["sample.bin", "sample.idx", "tokenizer"]


def tar_of(members: dict[str, bytes], mode: str = "w") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def owt(texts: list[bytes]) -> bytes:
    """openwebtext.tar.xz as it is published: a tar.xz of `…_data.xz`, each of which is a tar.xz of texts."""
    inner = [tar_of({f"{n:07}-{i}.txt": text for i, text in enumerate(texts[n::2])}, "w:xz") for n in range(2)]
    return tar_of({f"openwebtext/urlsf_subset0{n}-{n}_data.xz": part for n, part in enumerate(inner)}, "w:xz")


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.json.xz", lzma.compress),
        ("no suffix", gzip.compress),
        ("two frames.zst", lambda data: SKIPPABLE + zstd(data[:30]) + zstd(data[30:])),
        ("a.tar", lambda data: tar_of({"deep/a.jsonl": data})),
        ("a.tar.gz", lambda data: tar_of({"a.jsonl.gz": gzip.compress(data)}, "w:gz")),
    ],
)
def test_names_and_archives_do_not_change_the_tokens(
    bpe: Path, tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / name).write_bytes(pack(SAMPLE.encode()))
    assert tokenize(bpe, tmp_path / "t", tmp_path / name, "--workers", 1) == 0
    assert texts_of(bpe, tmp_path / "t") == ["The quick brown fox", "jumps over the lazy dog"]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
ARCHIVE = tar_of({"a.txt": b"one", "b.txt": b"two"})  # headers at 0 and 1024, the end mark from 2048 on


@pytest.mark.parametrize(
    ("content", "count", "fault"),
    [
        (ARCHIVE + ARCHIVE, 4, None),  # joined by `cat`
        (ARCHIVE[:2560], 2, None),  # one block of the end mark
        (ARCHIVE[:1100] + b"?" + ARCHIVE[1101:], 1, "bad checksum at byte 1,024"),
        (ARCHIVE[:512] + bytes(1024) + ARCHIVE[1536:], 1, "bad checksum at byte 1,536"),
        (ARCHIVE[:1100], 1, "truncated header at byte 1,024"),
        (ARCHIVE[:2048], 2, "the end mark is missing at byte 2,048"),
    ],
)
def test_no_member_of_an_archive_is_lost_silently(
    tmp_path: Path, content: bytes, count: int, fault: str | None
) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    rows = list(read_rows(tmp_path / "a.tar", "text"))
    assert [row.kind for row in rows] == ["text"] * count + ["broken_file"] * bool(fault)
    assert fault is None or fault in rows[-1].content.decode()


def test_a_member_that_cannot_be_read_ends_with_itself(tmp_path: Path) -> None:
    """A damaged packed one, unknown kinds, links, what macOS and Git LFS leave: each is named, the others are read."""
    inner = lzma.compress(tar_of({"1.txt": b"one", "2.txt": b"two" * 999}))
    bad = {"a.txt": b"PK\x03\x04", "a.json": "{}".encode("utf-16"), "./._b.txt": b"\0\5\x16\7", "c.txt": POINTER}
    (tmp_path / "a.tar").write_bytes(tar_of({"0_data.xz": inner[:-40], "1_data.xz": b"", **bad, "../d.txt": b"end"}))
    rows = [(row.place.partition("!")[2], row.kind) for row in read_rows(tmp_path / "a.tar", "text")]
    texts = [("0_data.xz!1.txt", "text")] * (rows[0][1] == "text")
    broken = [(texts[-1][0] if texts else "0_data.xz", "broken_file"), ("1_data.xz", "broken_file")]
    assert rows == [*texts, *broken, *((name, "not_text") for name in bad), ("../d.txt", "text")]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("folder", tarfile.DIRTYPE), ("b.txt", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.txt"
            archive.addfile(member)
    assert [row.kind for row in read_rows(tmp_path / "a.tar", "text")] == ["not_text"]


def test_openwebtext_is_read_as_published(bpe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    texts = [f"page {number}\nthe end".encode() for number in range(5)]
    (tmp_path / "openwebtext.tar.xz").write_bytes(owt([*texts, b""]))
    assert tokenize(bpe, tmp_path / "t", tmp_path / "openwebtext.tar.xz", "--workers", 1) == 0
    assert texts_of(bpe, tmp_path / "t") == [text.decode() for text in texts[0::2] + texts[1::2]]
    assert "5 documents" in (out := capfd.readouterr().out) and "1 empty" in out
    [row] = rejected(tmp_path / "t")
    assert row["file"].endswith("openwebtext.tar.xz!openwebtext/urlsf_subset01-1_data.xz!0000001-2.txt")


def corpus(path: Path, rows: int = 400) -> Path:
    words = ["the", "weather", "of", "汉字", "Привет", "\n", "<|endoftext|>", "x" * 50]
    with path.open("w") as file:
        for number in range(rows):
            text = " ".join(words[(number * k) % 8] for k in range(1, 20))
            file.write(json.dumps({"text": text, "n": number}) + ("\n{broken\n\n" if number % 50 == 7 else "\n"))
    return path


def test_bytes_do_not_depend_on_workers(bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize_files, "BLOCK_BYTES", 4000)
    source = corpus(tmp_path / "c.jsonl")
    for workers in (1, 2):
        assert tokenize(bpe, tmp_path / f"w{workers}/t", source, "--append-eod", "--workers", workers) == 0
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / f"w{n}").glob("t.*")} for n in (1, 2))
    assert one == two and one.keys() == {"t.bin", "t.idx", "t.rejected.jsonl"}
    assert len(IndexedDataset(tmp_path / "w1/t")) == 400


@pytest.mark.parametrize("at", [2, 5, "move"])
def test_an_interrupted_run_continues(bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: object) -> None:
    monkeypatch.setattr(tokenize_files, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(tokenize_files, "SAVE_SECONDS", 0.0)
    source = corpus(tmp_path / "c.jsonl")
    assert tokenize(bpe, tmp_path / "whole", source, "--workers", 1) == 0
    encoded, calls = tokenize_files.BlockEncoder.__call__, []

    def encode(self: tokenize_files.BlockEncoder, rows: list[Row]) -> tokenize_files.EncodedBlock:
        calls.append(rows)
        if len(calls) == at:
            raise KeyboardInterrupt
        return encoded(self, rows)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tokenize_files.BlockEncoder, "__call__", encode)
    with monkeypatch.context() as patch:
        if at == "move":
            patch.setattr(Path, "replace", lambda self, to: stop() if self.name == "index" else self.rename(to))
        assert tokenize(bpe, tmp_path / "cut", source, "--workers", 1) == 130
    before, at = calls.copy(), None
    calls.clear()
    assert tokenize(bpe, tmp_path / "cut", source, "--workers", 1) == 0
    whole = list(tokenize_files.blocks_of([source], tokenize_files.TokenizeOptions()))
    assert [*before[: len(whole) - len(calls)], *calls] == whole and len(calls) < len(whole)  # none is encoded again
    for suffix in ("bin", "idx", "rejected.jsonl"):
        assert (tmp_path / f"cut.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    assert not (tmp_path / "cut.partial").exists()


BAD = [
    (b"{broken", "not_json"),
    (b"[1, 2]", "not_json"),
    (b"[" * 100_000, "not_json"),
    (b'{"text": "\xff"}', "not_json"),
    (b'{"text": "\\ud800"}', "not_utf8"),
    (b'{"text": 5}', "not_text"),
    (b'{"text": null}', "not_text"),
    (b'{"text": ""}', "empty"),
    (b'{"body": "x"}', "no_key"),
    (b"{'text': 'x'}", "not_json"),
]


def test_bad_rows_are_named_and_counted(bpe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [b'{"text": "good"}', *(line for line, _ in BAD), b'{"text": "end", "x": NaN}', b'{"text": " \\n"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert tokenize(bpe, tmp_path / "t", tmp_path / "a.jsonl", "--workers", 1) == 0
    rows = rejected(tmp_path / "t")
    assert [(row["line"], row["reason"]) for row in rows] == [(n, reason) for n, (_, reason) in enumerate(BAD, 2)]
    assert "a dict as Python prints it" in rows[-1]["detail"] and "ast.literal_eval" in rows[-1]["detail"]
    assert texts_of(bpe, tmp_path / "t") == ["good", "end", " \n"]
    out = capfd.readouterr().out
    assert "warning: 1 document of nothing but spaces" in out
    assert "rejected: 1 empty, 1 no_key, 5 not_json, 2 not_text, 1 not_utf8" in out


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: json.dumps({"text": text}).encode()))
def test_no_line_ends_a_run(line: bytes) -> None:
    found = read_text(Row("a", 1, "json", line), "text")
    assert isinstance(found, Rejected) or (found and found.encode())


def test_a_document_that_is_too_large_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT", 20)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n' + b"{" * 100 + b'\n{"text": "y"}')
    kinds = [(row.number, row.kind) for row in read_rows(tmp_path / "a.jsonl", "text")]
    assert kinds == [(1, "json"), (2, "too_large"), (3, "json")]
    (tmp_path / "a.txt").write_bytes(b"x" * 21)
    assert [row.kind for row in read_rows(tmp_path / "a.txt", "text")] == ["too_large"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.lz4", b"x", "unknown compression"),
        ("a.json", b"PK\x03\x04zip", "unknown compression (zip)"),
        ("a.bin", b"x", "unknown kind"),
        ("a.json", b'\xef\xbb\xbf[{"text": "x"}]', "a JSON array"),
        ("a.json", SAMPLE.encode("utf-16"), "a.json: it is UTF-16, not UTF-8; convert it: iconv"),
        ("a.json.gz", gzip.compress(b"x" * 10_000)[:-12], "cannot read on: Compressed"),
        ("a.json.zst", zstd(b"x" * 10_000)[:-3], "cannot read on: "),
        ("a.json.xz", lzma.compress(b"x" * 10_000)[:60], "(1 broken_file)"),
        ("a.tar", tar_of({"a.txt": b"x" * 5000})[:2000], "a.tar, line 1: cannot read on: "),
        ("a.json", b'{"body": "x", "id": 1}\n', "no document has the key 'text' (keys: body, id)"),
        ("a.json", b"{broken", "no document has a text (1 not_json)"),
        ("a.json", b"", "the inputs are empty"),
        ("a.json.gz", b"", "cannot read on: it has 0 bytes"),
        ("a.parquet", b"", "cannot read on: it has 0 bytes"),
        ("a.txt", SAMPLE.encode(), "a.txt has JSON lines with the key 'text'; rename it to .jsonl"),
        ("a.txt.gz", gzip.compress(b"\xef\xbb\xbf" + SAMPLE.encode()), "rename it to .jsonl"),
        ("a.txt", POINTER, "a.txt is a pointer of Git LFS, not the file itself; fetch it: git lfs pull"),
        ("a.parquet", POINTER, "git lfs pull"),
        ("/dev/null", b"", "/dev/null is a pipe or device; write what it gives to a file first"),
        (None, b"", "there is no file"),
    ],
)
def test_refusals_are_one_line(
    bpe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str | None, content: bytes, message: str
) -> None:
    if name:
        (tmp_path / name).write_bytes(content)
    assert tokenize(bpe, tmp_path / "t", tmp_path / (name or "none.json"), "--workers", 1) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and message in error
    assert not (tmp_path / "t.bin").exists()
    if name is None:  # before a tokenizer is downloaded
        assert run_command(app, ["data", "tokenize", str(tmp_path / "none"), "--output", str(tmp_path / "t")]) == 2
        assert message in capfd.readouterr().err


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_the_rows_before_a_break_are_kept(
    bpe: Path, tmp_path: Path, pack: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(1)
    texts = [noise.bytes(400).hex() for _ in range(300)]
    whole = pack(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    (tmp_path / "a.json.pack").write_bytes(whole[: len(whole) * 9 // 10])
    (tmp_path / "b.json").write_bytes(SAMPLE.encode() + '\ufeff\n{"text": "x"}\ufeff{"text": "y"}\n'.encode())
    assert tokenize(bpe, tmp_path / "t", tmp_path / "a.json.pack", tmp_path / "b.json", "--workers", 1) == 0
    found = texts_of(bpe, tmp_path / "t")
    assert found == [*texts[: len(found) - 4], "The quick brown fox", "jumps over the lazy dog", "x", "y"]
    assert len(found) > 100 and "rejected: 1 broken_file" in capfd.readouterr().out
    [row] = rejected(tmp_path / "t")
    assert row["file"].endswith("a.json.pack") and row["line"] == len(found) - 4 + 1


def test_a_text_of_utf_16_is_read(bpe: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("über", encoding="utf-16")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "x"}\n' + '{"text": "y"}'.encode("utf-16-le"))
    assert tokenize(bpe, tmp_path / "t", tmp_path / "a.txt", tmp_path / "b.jsonl", "--workers", 1) == 0
    assert texts_of(bpe, tmp_path / "t") == ["über", "x"]
    assert [row["reason"] for row in rejected(tmp_path / "t")] == ["not_json"]
    (tmp_path / "a.txt").write_text("über", encoding="utf-32")
    assert [*documents.documents(tmp_path / "a.txt", "text")] == ["über"]
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        (tmp_path / "a.txt").write_text("words", encoding=encoding)
        [found] = documents.documents(tmp_path / "a.txt", "text")
        assert isinstance(found, Rejected) and found.reason == "not_utf8" and "iconv" in found.detail
    # Texts that begin as packed files do.
    texts = {"a.txt": b"BZhang wrote this", "b.txt": b"Rar! cried the lion", "c.txt": SAMPLE.encode()}
    (tmp_path / "a.tar").write_bytes(tar_of(texts))
    assert tokenize(bpe, tmp_path / "u", tmp_path / "a.tar", "--workers", 1) == 0
    assert texts_of(bpe, tmp_path / "u") == [text.decode() for text in texts.values()]


def test_texts_are_separated(bpe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "one<|endoftext|>\ntwo\n\n<|endoftext|>\n"
    for name, content in (("data/a.txt", text), ("meta/a.json", '{"url": "u"}'), ("meta/b.json", "{}")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(content)
    assert tokenize(bpe, tmp_path / "t", tmp_path / "in", "--workers", 1) == 0
    out = capfd.readouterr().out
    assert "1 .txt file with <|endoftext|> as text; --separator '<|endoftext|>'" in out
    assert "rejected: 1 no_key" in out  # of metadata without a text
    assert texts_of(bpe, tmp_path / "t") == [text]
    assert tokenize(bpe, tmp_path / "u", tmp_path / "in", "--workers", 1, "--separator", "<|endoftext|>") == 0
    assert texts_of(bpe, tmp_path / "u") == ["one", "two"] and "warning" not in capfd.readouterr().out
    assert tokenize(bpe, tmp_path / "w", tmp_path / "in", "--workers", 1, "--separator", r"\n\n") == 0
    assert "warning: the separator '\\\\n\\\\n' divides no .txt file" in capfd.readouterr().out
    (tmp_path / "in/data/a.txt").write_text(text, encoding="utf-16")
    assert tokenize(bpe, tmp_path / "v", tmp_path / "in", "--workers", 1, "--separator", "<|endoftext|>") == 2
    assert "a.txt: it is UTF-16, not UTF-8; convert it" in capfd.readouterr().err


def test_existing_tokens_and_another_tokenizer_are_refused(
    bpe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(SAMPLE)
    assert tokenize(bpe, tmp_path / "t", tmp_path / "a.json", "--workers", 1) == 0
    assert tokenize(bpe, tmp_path / "t", tmp_path / "a.json", "--workers", 1) == 2
    vocab, merges = small_tables()
    (other := tmp_path / "other").mkdir()
    save_tokenizer(other, vocab, merges[:3])
    assert tokenize(other, tmp_path / "u", tmp_path / "a.json", "--workers", 1) == 2
    assert tokenize(bpe, tmp_path / "a.json" / "t", tmp_path / "a.json", "--workers", 1) == 2
    assert "cannot write" in capfd.readouterr().err.splitlines()[-1]
    with pytest.raises(UserError, match="has no files"):
        (tmp_path / "none").mkdir()
        documents.expand([tmp_path / "none"])


def test_files_behind_links_are_found(tmp_path: Path) -> None:
    """As in the cache of the hub; a link whose file was removed is named, a loop of links ends."""
    for name in ("in", "elsewhere/sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "elsewhere/sub/a.jsonl").write_text(SAMPLE)
    (tmp_path / "in/deep").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/b.jsonl").symlink_to(tmp_path / "elsewhere/sub/a.jsonl")
    (tmp_path / "elsewhere/loop").symlink_to(tmp_path / "in")
    found = [str(path.relative_to(tmp_path / "in")) for path in documents.expand([tmp_path / "in"])]
    assert found == ["b.jsonl", "deep/sub/a.jsonl"]
    (tmp_path / "in/gone.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"in/gone\.jsonl is no file, or a link to one that is not there; remove it"):
        documents.expand([tmp_path / "in"])


@pytest.mark.slow
def test_the_commands_import_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, gpt2train.cli, gpt2train.data.tokenize_files, gpt2train.convert.dataset;"
        "print([name for name in ('torch', 'transformers', 'prefect', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_worker_outlives_a_killed_command(bpe: Path, tmp_path: Path) -> None:
    source = tmp_path / "pipe.jsonl"
    with source.open("w") as file:
        for number in range(200):
            file.write((json.dumps({"text": f"number {number} " * 20}) + "\n") * 1000)
    code = "import sys; from gpt2train.cli import main; sys.argv[0] = 'gpt2train'; main()"
    flags = ["--output", str(tmp_path / "t"), "--tokenizer", str(bpe), "--workers", "2"]
    with subprocess.Popen([sys.executable, "-c", code, "data", "tokenize", str(source), *flags]) as command:
        parent = psutil.Process(command.pid)
        deadline = time.monotonic() + 120
        while not (workers := [one for one in parent.children() if "spawn_main" in " ".join(one.cmdline())]):
            assert command.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        command.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    assert not (tmp_path / "t.bin").exists() or command.returncode == 0  # it ended while this process was stopped


TEXTS = [f"Document {number}: {'the fox ' * (number % 7)}\n日本 \ufeff" for number in range(700)]


def pair(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_the_bytes_are_those_of_json_lines(
    bpe: Path, tmp_path: Path, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    assert tokenize(bpe, tmp_path / "lines/a", tmp_path / "a.jsonl", "--json-key", "body", "--workers", 1) == 0
    table = pa.table({"number": range(len(TEXTS)), "body": pa.array(TEXTS).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300, compression="zstd")
    monkeypatch.setattr(tokenize_files, "BLOCK_BYTES", 4000)  # several blocks, which end within a row group
    assert tokenize(bpe, tmp_path / "rows/a", tmp_path / "a.parquet", "--json-key", "body", "--workers", 1) == 0
    assert pair(tmp_path / "rows/a") == pair(tmp_path / "lines/a")
    assert not (tmp_path / "rows/a.rejected.jsonl").exists()


def test_rows_without_text_are_named(bpe: Path, tmp_path: Path) -> None:
    texts = pa.array([b"one", None, b"", b"\xff", b"two"], pa.binary())
    nested = pa.array([{"text": "nested"}, {"text": None}, None, {"text": ""}, {"text": "x"}])
    pq.write_table(pa.table({"text": texts, "in": nested}), tmp_path / "a.parquet")
    assert tokenize(bpe, tmp_path / "out/a", tmp_path / "a.parquet", "--workers", 1) == 0
    rows = rejected(tmp_path / "out/a")
    assert [(row["line"], row["reason"]) for row in rows] == [(2, "not_text"), (3, "empty"), (4, "not_utf8")]
    assert tokenize(bpe, tmp_path / "nulls/a", tmp_path / "a.parquet", "--workers", 1, "--json-key", "in.text") == 0
    assert [one.name for one in (tmp_path / "nulls").glob("a.b*")] == ["a.bin"]
    assert rows[0]["detail"] == "text is null" and rows[0]["file"] == str(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("body", "a.parquet has no column 'text'; it has 'body'; name it by --json-key"),
        ("text", "column 'text' of {folder}/a.parquet holds int64, strings expected; name another by --json-key"),
        ("", "a.parquet, line 1: cannot read on: not a valid Parquet file after row 0"),
    ],
)
def test_a_file_without_texts_is_refused_in_one_line(
    bpe: Path, tmp_path: Path, column: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({column: [1, 2] if column == "text" else ["a", "b"]}), tmp_path / "a.parquet")
    if not column:
        (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    assert tokenize(bpe, tmp_path / "out/a", tmp_path / "a.parquet", "--workers", 1) == 2
    error = capsys.readouterr().err
    assert message.format(folder=tmp_path) in error and error.count("\n") == 1


PAGE = Path(__file__).parents[3] / "docs/data/tokenize.md"


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample.json").write_text(SAMPLE)
    (tmp_path / "openwebtext.tar.xz").write_bytes(owt([b"one page", b"another"]))
    (tmp_path / "gpt2-tokenizer").mkdir()
    save_tokenizer(tmp_path / "gpt2-tokenizer", *small_tables())
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    first, second, flow = commands
    for command in (first, second):
        assert command[0] == "gpt2train" and run_command(app, command[1:]) == 0
    assert [len(IndexedDataset(prefix)) for prefix in ("tokens/sample", "owt/tokens")] == [2, 2]
    # The flow takes minutes; tests/tasks/tokenizer runs the step. Its flags are settings.
    assert flow[:3] == ["python", "-m", "flows.dataprep"]
    given = dict(zip(flow[7::2], flow[8::2], strict=True))
    settings = {name.removeprefix("--tokenizer.").replace("-", "_"): value for name, value in given.items()}
    assert DataprepSettings.model_validate({"tokenizer": settings}).tokenizer.algorithm == "sentencepiece_unigram"
