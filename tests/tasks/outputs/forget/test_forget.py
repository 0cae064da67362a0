"""`gpt2train forget`: no file, card or token has the pages after it, nor after a kill at any change and a new call."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from flows.orchestration.run_context import check_output
from flows.pretrain import pretrain
from flows.settings import DataprepSettings, PretrainFlowSettings
from gpt2train.cli import app, run_command
from gpt2train.data.sharded_dataset import open_tokens
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.quality.documents import sample_documents
from gpt2train.store.output import MANIFEST, Folder, Manifest, check_no_removal, read_manifest
from gpt2train.store.output_lock import locked
from gpt2train.store.removal import PENDING
from tasks.core.forgotten import FORGOTTEN, name_of, read_forgotten
from tasks.core.shards import read_rows
from tasks.dedup.previous_runs import open_previous
from tasks.dedup.settings import DedupSettings
from tasks.outputs.browse.server import browse_routes
from tasks.outputs.forget.command import forget
from tasks.outputs.forget.scan import scan
from tasks.outputs.forget.token_text import forms_in_tokens, text_of
from tasks.outputs.passport.facts import SOURCES
from tasks.outputs.passport.publish import contents_of
from tasks.outputs.passport.write import write_passport
from tasks.outputs.verify.command import verify_output
from tests.flows.mini_pipeline import hashes
from tests.object_stores import store_server
from tests.tasks.cloze.test_step import story
from tests.tasks.corpus import read_jsonl, rejected_of, rows_of
from tests.tasks.forked_orders import order_server
from tests.tasks.outputs.forget.corpus import PAGES, complete, plant, run_flow, words_in
from tests.tasks.web_server import Site

GONE = ("Bert", "Dora", "Sven", "Olga")  # in the stories of the pages
FEW = pytest.param("few", marks=pytest.mark.slow)
ALL = pytest.param("all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(7200)])


def planned(capsys: pytest.CaptureFixture[str], *targets: str, **options: Any) -> dict[str, Any]:
    capsys.readouterr()
    forget(targets, json_=True, **options)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_names_everything_and_writes_nothing(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = hashes(out)
    found = planned(capsys, *PAGES, output=str(out))
    assert hashes(out) == before
    assert found["found"]["urls"] == sorted(PAGES)
    assert found["found"]["redirected"] == ["http://b.test/16"]  # it led to a.test/1
    assert len(found["found"]["documents"]) == 5
    assert found["found"]["user_files"] == ["a.warc.gz", "c.jsonl", "list.txt"]
    counts = {step["folder"]: step for step in found["found"]["steps"]}
    assert counts["pages"]["kept"] == 3 and counts["warcs"]["kept"] == 1 and counts["texts"]["kept"] == 1
    assert counts["dedup"]["rejected"] == 1  # b.test/16 as a copy
    tables = [read_rows(Folder(out / "tokens"), f"{split}/documents.parquet") for split in ("train", "valid", "test")]
    gone = [row for table in tables for row in table if row["url"] in {*PAGES, "http://b.test/16"}]
    assert sum(found["found"]["tokens"].values()) == sum(row["end"] - row["start"] for row in gone)
    assert set(found["removed"]) >= {"documents", "clean", "evalset", "dedup", "shuffled", "tokenizer", "tokens"}


@pytest.mark.slow
def test_the_result_is_that_of_a_run_without_the_pages(
    out: Path, settings: dict[str, Any], site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("Bert", "Dora", "Sven", "Olga", "Carl")
    assert set(words_in(out, *names)) == {*names}
    forget(PAGES, output=str(out), yes=True)
    assert set(words_in(out, *names)) == {"Carl"}
    assert not [path for path in out.rglob("*") if path.is_file() and b"a.test/3" in path.read_bytes()]
    requests = site.hits.total()
    skipped = run_flow(out, settings)
    assert site.hits.total() == requests  # nothing is fetched again
    assert {"blacklist", "download", "warcs", "webpages", "texts"} <= skipped
    assert set(words_in(out, *names)) == {"Carl"}
    verify_output(str(out), batches=0)
    # A fresh run over the same sources that has the list, and one over sources that never had the pages.
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    shutil.copy(out / FORGOTTEN, fresh)
    run_flow(fresh, settings)
    assert set(words_in(fresh, *names)) == {"Carl"}
    for folder in ("shuffled", "tokenizer", "tokens", "evalset"):
        assert without_manifest(out / folder) == without_manifest(fresh / folder), folder
    for folder in ("documents", "texts", "clean", "decontaminated", "dedup"):
        assert output_rows(out, folder) == output_rows(fresh, folder), folder
    assert reasons(fresh, "urls")["forgotten"] == 2 and reasons(fresh, "pages")["forgotten"] == 1
    assert reasons(out, "texts") == reasons(fresh, "texts") == {"empty": 1, "forgotten": 1}
    assert reasons(out, "warcs") == reasons(fresh, "warcs") == {"forgotten": 1}
    assert {row["url"] for row in rejected_of(Folder(out), need(out, "texts"))} >= {name_of("http://c.test/Sven")}
    wanted = read_forgotten(Folder(fresh))
    assert scan(Folder(fresh), wanted, wanted, [story("Bert"), story("Sven")], ("urls", "pages")).traces == []


def need(out: Path, folder: str) -> Any:
    found = read_manifest(Folder(out / folder))
    assert found is not None
    return found


def reasons(out: Path, folder: str) -> dict[str, int]:
    return dict(need(out, folder).outcome.reasons)


def output_rows(out: Path, folder: str) -> list[dict[str, Any]]:
    return rows_of(Folder(out), need(out, folder))


def without_manifest(folder: Path) -> dict[str, str]:
    return {name: found for name, found in hashes(folder).items() if not name.startswith("_")}


def test_a_domain_has_its_subdomains_and_a_file_many_lines(out: Path, tmp_path: Path) -> None:
    (tmp_path / "targets").write_text("# a comment\nhttps://A.TEST:443/2#part\n\nc.test.\nB.test\n")
    forget((str(tmp_path / "targets"), "a.test", "a.example"), output=str(out), yes=True)
    folder = Folder(out)
    assert output_rows(out, "texts") == []
    ledger = read_rows(folder / "pages", "ledger/part-00000.parquet")
    assert {row["url"].partition(":")[0] for row in ledger} == {"forgotten"}
    assert [row["host"] for row in read_rows(folder / "pages", "hosts.parquet")] == [""]
    assert output_rows(out, "urls") == []
    assert need(out, "warcs").outcome.kept == 0
    assert need(out, "webpages").outcome.kept == 1  # a file of the user, which has no domain


def test_the_name_of_a_users_file_is_a_target(out: Path) -> None:
    forget(("page.html",), output=str(out), yes=True)
    assert need(out, "webpages").outcome.kept == 0
    assert words_in(out, "Rosa") == {}
    assert read_forgotten(Folder(out)).domains == ()


def test_other_files_lose_the_texts(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placed = plant(out)
    found = planned(capsys, "http://a.test/3", output=str(out))
    files = ("inputs/0a1b/tokens/notes.bin", "runs/small/eval/passages.json.gz", "runs/small/samples.jsonl")
    assert {trace["file"] for trace in found["traces"]} == {*files, "quality/votes.jsonl", "notes.html"}
    assert {"data_steps/shout", "token_index"} <= set(found["removed"])
    forget(("http://a.test/3",), output=str(out), yes=True)
    assert not placed["plugin"].exists() and not (out / "token_index").exists() and not (out / "notes.html").exists()
    assert (placed["run"] / "samples.jsonl").read_text() == '{"step": 2}\n'
    assert (placed["run"] / "metrics.jsonl").exists()
    assert (out / "quality/votes.jsonl").read_text() == '{"url": "http://a.test/4"}\n'


def test_what_cannot_be_removed_is_named_and_no_flow_begins(out: Path) -> None:
    run = out / "runs/small"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"prompt": "see http://a.test/3."}))
    (out / "broken.gz").write_bytes(b"\x1f\x8bno gzip")
    said = r"2 files of .*broken.gz .*cannot be read.*runs/small/run.json .*a URL: http://a.test/3"
    with pytest.raises(RunError, match=said):
        forget(("http://a.test/3",), output=str(out), yes=True)
    with pytest.raises(UserError, match="was interrupted"):
        check_no_removal(Folder(out))
    with pytest.raises(UserError, match="--yes completes it"):
        forget(("http://a.test/3",), output=str(out))
    (run / "run.json").unlink()
    (out / "broken.gz").unlink()
    forget((), output=str(out), yes=True)
    assert not (out / PENDING).exists()
    check_no_removal(Folder(out))


def test_a_step_that_a_kill_left_in_part_is_removed(out: Path) -> None:
    """A copy of which the file with the page is gone: its other files and folders go too."""
    plant(out)
    (out / "broken.gz").write_bytes(b"\x1f\x8bno gzip")
    with pytest.raises(RunError, match="cannot be read"):
        forget(("http://a.test/3",), output=str(out), yes=True)
    assert not (out / "inputs/0a1b").exists()
    (out / "inputs/0a1b/tokens").mkdir(parents=True)
    (out / "inputs/0a1b/part.bin").write_bytes(b"\1\2")
    (out / "broken.gz").unlink()
    forget((), output=str(out), yes=True)
    assert not (out / "inputs/0a1b").exists()


@pytest.mark.slow
def test_an_interrupted_crawl_begins_anew(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("documents", "tokens"):
        shutil.rmtree(out / folder)
    (out / "pages" / MANIFEST).unlink()
    (out / "pages/_batches").mkdir(exist_ok=True)
    (out / "pages/_batches/part-00000.json").write_text("{}")
    forget(("http://a.test/3",), output=str(out), yes=True)
    assert "pages, which was interrupted, begins anew" in capsys.readouterr().out
    assert not (out / "pages").exists() and not (out / "clean").exists() and (out / "urls").exists()
    assert words_in(out, "Dora") == {}


def test_a_page_that_the_corpus_does_not_have(out: Path) -> None:
    before = hashes(out)
    with pytest.raises(UserError, match="has no page of"):
        forget(("http://a.test/99", "other.test", "no page.html"), output=str(out), yes=True)
    assert {name: value for name, value in hashes(out).items() if name != ".lock"} == before


@pytest.mark.slow
def test_the_command_line(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "removals.txt").write_text("http://a.test/3\n")
    command = ["forget", "http://a.test/1", "c.test", str(tmp_path / "removals.txt"), "--output", str(out)]
    assert run_command(app, command) == 0
    assert capsys.readouterr().out.endswith("nothing was changed; --yes removes the pages\n")
    assert run_command(app, [*command, "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "no text or URL of the pages is left" in shown
    assert "your own files with the pages, left alone: c.jsonl, list.txt" in shown
    assert run_command(app, ["forget", "http://a.test/99", "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {out} has no page of http://a.test/99;")


def test_bad_input_is_said_in_one_line(out: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    files = {"empty": "one per line", "binary": "cannot be read as text"}
    wrong = {(str(tmp_path / name),): message for name, message in files.items()}
    for targets, message in ({(): "give a URL", (" ",): "no URL"} | wrong).items():
        with pytest.raises(UserError, match=message):
            forget(targets, output=str(out))
    with pytest.raises(UserError, match="no output"):
        forget(("http://a.test/1",), output=str(tmp_path / "none"))
    with locked(Folder(out)), pytest.raises(UserError, match="another run"):
        forget(("http://a.test/1",), output=str(out), yes=True)


@pytest.mark.slow
def test_pages_are_forgotten_one_after_the_other(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for page in ("http://a.test/1", "http://a.test/3"):
        forget((page,), output=str(out), yes=True)
    assert words_in(out, "Bert", "Dora") == {}
    verify_output(str(out), batches=0)
    capsys.readouterr()
    forget(("http://a.test/1",), output=str(out), yes=True)  # nothing is left of it
    assert "no text or URL" in capsys.readouterr().out
    assert need(out, "pages").outcome.kept > 0


@pytest.fixture
def store() -> Iterator[str]:
    url = "memory://forget"
    yield url
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/forget", recursive=True)


@pytest.mark.slow
def test_a_store_gets_the_same_files(out: Path, store: str) -> None:
    fsspec.filesystem("memory").put(f"{out}/", "/forget/", recursive=True)
    forget(PAGES, output=store, yes=True)
    forget(PAGES, output=str(out), yes=True)
    local, remote = Folder(out), Folder(store)
    names = [name for name in local.files() if name != ".lock"]
    assert remote.files() == names
    assert [remote.record(name) for name in names] == [local.record(name) for name in names]


LETTERS = "abcdefghijklmnop"


def test_words_without_a_token_are_left_out(tmp_path: Path) -> None:
    """A tokenizer as BERT's without the letters after p."""
    pieces = ["[UNK]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    (tmp_path / "deep/tokenizer").mkdir(parents=True)
    tokenizer.save(str(tmp_path / "deep/tokenizer/tokenizer.json"))
    text, kept = "A caf\u00e9 of old planks had NO lamp, a yellow yak", "hidden: a deep lake."
    forms = forms_in_tokens(Folder(tmp_path), [text, kept])
    assert [form.split() for form in forms] == [["a", "cafe", "of", "old", "had", "no", "lamp", "a"]]
    own = load_tokenizer(tmp_path / "deep/tokenizer")
    assert text_of(own, encode_ordinary(own, ["yellow yaks sit"])[0]).split() == []
    (tmp_path / "deep/tokenizer/tokenizer.json").write_text("{}")
    assert forms_in_tokens(Folder(tmp_path), [text]) == []


@pytest.mark.parametrize("replaces", [False, True])
def test_tokenizers_of_bytes_give_texts_back_unless_they_normalise(tmp_path: Path, replaces: bool) -> None:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.normalizer = normalizers.Replace("o", " ") if replaces else None
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer/tokenizer.json"))
    assert forms_in_tokens(Folder(tmp_path), ["a fox"]) == (["a f x"] if replaces else [])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "language"), [("t5", "lv"), ("bert-base-uncased", "ko")])
def test_a_copy_of_tokens_with_a_page_is_removed(real_data: Path, tmp_path: Path, name: str, language: str) -> None:
    """A copy without the table of its documents, so that only their words show whose they are."""
    passages = read_jsonl(real_data / "lang/udhr_lang_dev.jsonl.gz")
    chosen = [row for row in passages if row["lang"] in ("ko", "cs", "tr", "lv", "de") and len(row["text"]) > 200]
    rows = [{"url": f"http://{row['lang']}.test/{number}", "text": row["text"]} for number, row in enumerate(chosen)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "workers": 1,
        "documents": [str(tmp_path / "c.jsonl")],
        "clean": {"language": {"keep": ["any"]}, "min_tokens": 8},
        "tokenizer": {"name": "folder", "folder": str(real_data / "eval/tokenizers" / name)},
    }
    out = tmp_path / "out"
    run_flow(out, settings)
    for copied in ("tokens", "tokenizer"):
        shutil.copytree(out / copied, out / "mine" / copied, ignore=shutil.ignore_patterns("*.parquet", "_*"))
    copies = sorted((out / "mine/tokens").rglob("*.bin"))
    target, other = (next(row["url"] for row in rows if f"{name}.test" in row["url"]) for name in (language, "de"))
    forget((target,), output=str(out), yes=True)
    assert [copy for copy in copies if not copy.exists()]
    forget((other,), output=str(out), yes=True)


def rows_of_card(out: Path) -> set[str]:
    """Rows that the card must have, by the manifests alone."""
    sources = [need(out, folder) for folder in ("pages", "warcs", "webpages", "texts")]
    rows = {f"| {SOURCES[one.step]} | {one.outcome.seen:,} | {one.outcome.kept:,} |" for one in sources}
    rows |= {f"| download | {name.replace('_', ' ')} | {n:,} |" for name, n in reasons(out, "pages").items()}
    return rows | {f"{need(out, 'tokens').outcome.facts['train_tokens']:,}"}


def card_of(out: Path) -> str:
    write_passport(Folder(out))
    return (out / "passport/README.md").read_text()


@pytest.mark.exhaustive
def test_the_card_follows_a_removal(out: Path, settings: dict[str, Any]) -> None:
    first, expected = card_of(out), rows_of_card(out)
    assert all(row in first for row in expected), expected
    forget(PAGES, output=str(out), yes=True)
    run_flow(out, settings)
    second, forgotten = card_of(out), rows_of_card(out)
    assert all(row in second for row in forgotten) and len(forgotten - expected) >= 3
    assert "| download | forgotten |" in second and "| download | forgotten |" not in first


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
