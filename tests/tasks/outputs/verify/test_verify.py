"""`gpt2train verify`: every damage to an output is found, and a sound one is equal; nothing is written to it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from benchmarks.extract import as_page
from gpt2train.errors import RunError, UserError
from gpt2train.store.manifest import MANIFEST, Folder, Manifest, Outcome, digest, fingerprint
from tasks.boilerplate.step import BoilerplateSettings, boilerplate
from tasks.clean.step import CleanSettings, clean
from tasks.core.input_files import find_inputs
from tasks.core.shards import CLEAN, read_rows, write_rows
from tasks.core.step import Step
from tasks.extract.step import ENGINE_VERSIONS, ExtractSettings, extract
from tasks.outputs.verify.command import verify_output
from tasks.outputs.verify.redo import RedoRunner
from tasks.shuffle.step import ShuffleSettings, shuffle
from tasks.sources.warcs import ArchiveConsent
from tasks.sources.webpages import WebpagesSettings, webpages
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.tasks.core.test_versions import documents, upgrade
from tests.tasks.corpus import Inline
from tests.tasks.sources.archives import archive, index, members, numbered, response
from tests.tasks.warc_pages import write_pages


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The steps from two documents to their tokens; a third document is rejected."""
    path = tmp_path_factory.mktemp("verify") / "out"
    root = Folder(path)
    with Inline(workers=1) as runner:
        found = documents(root)
        settings = CleanSettings.model_validate({"min_tokens": 300, "language": {"keep": ["any"]}})
        rejected = clean(root, found, settings.model_copy(update={"min_tokens": 10_000}), runner)
        assert rejected.outcome.reasons == {"too_short": 2}
        shutil.copytree(path, path.with_name("rejected"))
        cleaned = clean(root, found, settings, runner)
        shuffled = shuffle(root, cleaned, ShuffleSettings(), runner)
        words = tokenizer(root, shuffled, TokenizerSettings(vocab_size=300), runner)
        tokenize(root, shuffled, words, TokenizeSettings(), runner)
    return path


@pytest.fixture
def out(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "out"))


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the batches of a verification in this process: to start workers takes seconds."""
    dispatch = RedoRunner.dispatch
    in_thread = lambda self, stage, groups, where, at_once: dispatch(self, stage, groups, "thread", at_once)  # noqa: E731
    monkeypatch.setattr(RedoRunner, "dispatch", in_thread)


def verified(capsys: pytest.CaptureFixture[str], out: Path | str, **options: Any) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    try:
        verify_output(str(out), json_=True, workers=1, **options)
        wrong = False
    except RunError as error:
        assert "differ" in str(error)
        wrong = True
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] != wrong
    return {finding["step"]: finding for finding in found["steps"]}


def test_a_sound_output_is_equal_and_not_written(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in out.rglob("*") if p.is_file()}

    before = state()
    found = verified(capsys, out)
    assert state() == before
    assert [*found] == ["clean", "extract", "shuffle", "tokenizer", "tokenize"]
    assert all(finding["problems"] == [] for finding in found.values())
    assert [found[name]["redone"] for name in ("clean", "shuffle", "tokenizer")] == ["1 of 1 batches", "whole", "whole"]
    assert found["tokenize"]["redone"] == "1 document, whole"
    assert "its input 'download' is not in this output" in found["extract"]["notes"][0]  # said, and no difference


@pytest.mark.parametrize("engine", ["structure", "trafilatura"])
def test_the_extraction_is_done_again_by_its_own_engine(
    engine: Literal["structure", "trafilatura"], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Folder(tmp_path / "out")
    items = "<ul><li><code>open</code> reads the file</li></ul>"  # one engine loses its first word
    body = f"<html><body><article><p>{'The river runs through the valley. ' * 20}</p>{items}</article></body></html>"
    with (root / "pages").writing("part-00000.warc.gz") as draft:
        write_pages(draft, [as_page("http://a.example/", body.encode())])
    step = Step(root, "download", version=1, parameters={}, inputs={}, folder="pages")
    pages = step.commit(Outcome(outputs=(step.folder.record("part-00000.warc.gz", rows=1),)))
    with Inline(workers=1) as runner:
        extract(root, pages, ExtractSettings(engine=engine), runner, clean=CleanSettings())
    found = verified(capsys, tmp_path / "out")["extract"]
    assert (found["problems"], found["redone"]) == ([], "1 of 1 batches")
    monkeypatch.setitem(ENGINE_VERSIONS, engine, 99)  # a later release
    assert f"of the engine {engine}" in verified(capsys, tmp_path / "out")["extract"]["notes"][0]


def test_texts_of_pages_are_cleaned_as_such_after_the_removal_of_their_boilerplate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entities that a page shows are text; those of a given file would be replaced."""
    root = Folder(tmp_path)
    settings = CleanSettings.model_validate({"min_tokens": 0, "language": {"keep": ["any"]}})
    with Inline(workers=1) as runner:
        found = documents(root, "Write &lt; for the sign &amp; nothing else. ")
        rest = boilerplate(root, found, BoilerplateSettings(enabled=True), runner)
        cleaned = clean(root, rest, settings, runner, origin=found)
    [text, _] = (row["text"] for row in read_rows(root / "clean", cleaned.outputs[0].name))
    assert "&lt;" in text
    assert not verified(capsys, tmp_path)["clean"]["problems"]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(out: Path, folder: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = out / folder / MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_a_flipped_byte_in_any_file_is_found(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in corpus.rglob("*") if path.is_file() and path.stat().st_size]
    # `_rows` has hashes beside the outputs, which a step checks before it takes rows by them.
    names = [str(p.relative_to(corpus)) for p in files if p.name != "timings.jsonl" and p.parent.name != "_rows"]
    assert len(names) > 15
    for number, name in enumerate(names):
        out = Path(shutil.copytree(corpus, tmp_path / str(number)))
        flip(out / name, (out / name).stat().st_size // 2)
        found = verified(capsys, out, batches=0)
        assert any(finding["problems"] for finding in found.values()), name


@pytest.mark.parametrize(
    ("folder", "change", "message"),
    [
        ("clean", lambda m: m["parameters"].update(min_tokens=5), "do not give its fingerprint"),
        ("clean", lambda m: m["versions"].update(ftfy="6.0"), "do not give its fingerprint"),
        ("shuffled", lambda m: m["inputs"].update(documents="0" * 32 + ":0"), "no step of this output"),
        ("clean", lambda m: m["outcome"]["outputs"][0].update(sha256="0" * 64), "do not give its content"),
        ("clean", lambda m: m["outcome"]["reasons"].update(too_short=3), "counts 3 rejected rows"),
        ("shuffled", lambda m: m["outcome"].update(kept=3), "kept: 3 in the manifest, 2 when done again"),
        ("clean", lambda m: m["outcome"].update(kept=3), "counts 3 kept rows, its outputs have 2"),
        ("clean", lambda m: m["outcome"].update(seen=7), "counts 7 rows, 2 kept"),
        ("clean", lambda m: m["outcome"]["outputs"][0].update(rows=3), "2 rows, 3 in the manifest"),
        ("tokens", lambda m: m["outcome"]["facts"].update(train_tokens=9), "states train_tokens: 9, its files have"),
        ("tokens", lambda m: m["outcome"]["outputs"][0].update(rows=9), "do not give"),
    ],
)
def test_an_edit_is_found(
    out: Path, folder: str, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(out, folder, change)
    problems = [problem for finding in verified(capsys, out).values() for problem in finding["problems"]]
    assert any(message in problem for problem in problems), problems


def test_a_missing_twin_of_rejected_rows_is_found(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = corpus.with_name("rejected")
    assert verified(capsys, out)["clean"]["problems"] == []
    twin = out / "clean/rejected/part-00000.parquet"
    twin.rename(twin.with_suffix(".away"))
    problems = verified(capsys, out)["clean"]["problems"]
    assert problems[0] == "clean/rejected/part-00000.parquet: missing"
    edit(out, "clean", lambda m: m["outcome"].update(rejected=[]))  # and out of the manifest
    problems = verified(capsys, out)["clean"]["problems"]
    assert any("counts 2 rejected rows" in problem for problem in problems)
    assert any("it is not in the manifest, but is made" in problem for problem in problems)
    twin.with_suffix(".away").rename(twin)


def test_content_that_the_step_does_not_make_is_found(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a batch of another release that nothing recorded: hashes agree, the batch does not."""
    rows = list(read_rows(Folder(out / "clean"), "part-00000.parquet"))
    rows[1]["text"] = "Another text."
    record = write_rows(Folder(out / "clean"), "part-00000.parquet", rows, CLEAN)

    def change(manifest: dict[str, Any]) -> None:
        manifest["outcome"]["outputs"] = [record.model_dump()]
        manifest["content"] = digest([[record.name, record.sha256]])

    edit(out, "clean", change)
    found = verified(capsys, out, batches=1)
    [problem] = found["clean"]["problems"]
    said = "clean/part-00000.parquet: row 1, column text: 'Another text.' in the output, 'The harbour"
    assert problem.startswith(said)
    assert "input 'documents': no step of this output" in found["shuffle"]["problems"][0]


def test_tokens_of_another_text_are_found(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [split] = {p.parent.name for p in (out / "tokens").rglob("*.bin") if p.stat().st_size}
    flip(out / f"tokens/{split}/tokens.bin", 8)
    flip(out / f"tokens/{split}/tokens.bin", (out / f"tokens/{split}/tokens.bin").stat().st_size - 8)
    problems = verified(capsys, out, step=("tokenize",))["tokenize"]["problems"]
    assert any("when tokenised again" in problem for problem in problems), problems
    assert f"tokens/{split}/tokens.bin: byte 8" in problems


def test_another_package_version_is_a_difference_unless_accepted(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upgrade(monkeypatch, "ftfy")
    problems = verified(capsys, out, batches=0)["clean"]["problems"]
    assert len(problems) == 1 and "made with ftfy" in problems[0] and "(here 99.0)" in problems[0]
    accepted = verified(capsys, out, step=("clean",), environment="accept")["clean"]
    assert accepted["problems"] == [] and accepted["redone"] == "1 of 1 batches"


def test_a_corpus_without_recorded_packages_is_verified_and_named(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Manifest.model_validate_json((out / "tokenizer" / MANIFEST).read_text())
    old = fingerprint(made.step, made.version, made.parameters, made.inputs)
    edit(out, "tokenizer", lambda m: m.update(fingerprint=old))
    found = verified(capsys, out, step=("tokenizer",))["tokenizer"]
    assert found["problems"] == [] and "packages unknown" in found["notes"][0]


def test_indexes_of_archives_and_pages_are_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consent = ArchiveConsent(agent="gpt2train")
    records = [response(1, numbered(1)), response(2, numbered(2), "X-Robots-Tag: noai"), response(3, numbered(3))]
    path = archive(tmp_path, members(records))
    made = index(tmp_path / "out", path, consent=consent)
    assert made.outcome.reasons == {"noai": 1}
    (tmp_path / "a.html").write_bytes(numbered(4))
    with Inline() as runner:
        webpages(Folder(tmp_path / "out"), find_inputs([f"{tmp_path}/*.html"], "", ()), WebpagesSettings(), runner)
    found = verified(capsys, tmp_path / "out")
    assert [found[name]["problems"] for name in ("warcs", "webpages")] == [[], []]
    assert [found[name]["redone"] for name in ("warcs", "webpages")] == ["1 of 1 batches"] * 2
    (tmp_path / "a.html").write_bytes(numbered(5))
    archive(tmp_path, members(records[::2]))
    found = verified(capsys, tmp_path / "out")
    assert all(found[name]["problems"] or found[name]["notes"] for name in ("warcs", "webpages")), found


def test_an_output_in_a_store_is_verified(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Folder("memory://verify")
    for path in out.rglob("*"):
        if path.is_file():
            store.write_bytes(str(path.relative_to(out)), path.read_bytes())
    assert not any(finding["problems"] for finding in verified(capsys, store.url).values())
    store.write_bytes("shuffled/part-00000.parquet", b"x")
    assert "1 bytes" in verified(capsys, store.url, step=("shuffle",))["shuffle"]["problems"][0]
    store.fs.rm(store.path(), recursive=True)


def test_wrong_arguments_are_said(out: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="clean is a step of an output, not all of it; give the --output of a flow"):
        verify_output(str(out / "clean"))
    with pytest.raises(UserError, match="holds no finished step"):
        verify_output(str(tmp_path / "none"))
    with pytest.raises(UserError, match="no finished step 'cleann'; it has clean, "):
        verify_output(str(out), step=("cleann",))
