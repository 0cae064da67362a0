"""Parts of a removal: forms of URLs, contents of files, lists of URLs; samples and steps that have read the pages."""

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.settings import PretrainFlowSettings, resolve
from gpt2train.config import CONFIG_FILE, read_run_config, to_toml
from gpt2train.config.data import Corpus
from gpt2train.data.epoch import Epoch
from gpt2train.data.samples import Samples
from gpt2train.data.sharded_dataset import open_tokens, tokens_identity
from gpt2train.errors import RunError, UserError
from gpt2train.monitoring.run_record import CorpusNote, RunRecord
from gpt2train.store.manifest import MANIFEST, Folder, Outcome, digest
from gpt2train.store.run_folder import list_checkpoints, newest_checkpoint
from tasks.core.forgotten import REASON, Forgotten, domain_hash, name_of, read_forgotten, url_hash, url_key
from tasks.core.reject_limits import LimitSettings, check_reject_rate
from tasks.core.shards import REJECTED, read_rows, rejected_row, write_rows, write_table
from tasks.core.step import Step
from tasks.discover.cdx import CAPTURES
from tasks.discover.domains import find_domains
from tasks.discover.found import DISCOVERED, FoundUrls
from tasks.discover.step import lists_of
from tasks.download.host_stats import HOSTS, SIGNALS
from tasks.download.ledger import CONSENT, LEDGER
from tasks.download.warc import EMPTY, Page, encode_head, encode_record
from tasks.outputs.forget.command import _print, _run_lines, forget
from tasks.outputs.forget.decode import pieces
from tasks.outputs.forget.plan import Removal, narrowed, plan_removal
from tasks.outputs.forget.remove import remove_pages
from tasks.outputs.forget.rewrite import rewrite_step
from tasks.outputs.forget.scan import Searcher, scan
from tasks.outputs.forget.targets import domain_of, read_targets, selection_of
from tasks.outputs.forget.training import RunReading, find_runs, read_by, write_settings
from tasks.shuffle.step import ShuffleSettings, shuffle
from tasks.tokenize.step import TokenizeSettings, tokenize
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.tasks.cloze.test_step import story
from tests.tasks.corpus import Inline, documents_of, row
from tests.tasks.outputs.forget.corpus import write_run

CONTEXT, BATCH, STEPS = 16, 4, 30
ROWS = [row(f"Chapter {n}: {'a fox and a wolf ' * (n % 5 + 1)}.", f"http://a.test/{n}") for n in range(30)]


def test_urls_are_compared_in_one_form() -> None:
    keys = {
        "HTTP://User:pw@A.Example.:80/x/%7Eb?q=1#part": "//a.example/x/~b?q=1",
        **{"https://a.example": "//a.example/", "http://a.example:8080/ä": "//a.example:8080/%C3%A4"},
        **{"http://bücher.example/": "//xn--bcher-kva.example/", "http://\u2603.example/": "//xn--n3h.example/"},
        **{"www.A.example/x": "//www.a.example/x", "a.example:8080/x": "//a.example:8080/x"},
    }
    same = (" //a.example/x", "ftp://me@a.example/x", "https:a.example/x", "http:///a.example/x")
    keys |= dict.fromkeys((*same, "http:\\\\a.example\\x"), "//a.example/x")
    files = ("notes/a.html", "page.html", "c.jsonl#13", "/data/a.example/x", "file:///a.example/x", "../a.example")
    keys |= {name: name for name in (*files, "http://[", "mailto:me@a.example")}
    assert {url: url_key(url) for url in keys} == keys


def test_a_domain_means_its_subdomains_alone() -> None:
    listed = selection_of(["B\u00fccher.example."])
    for host, is_listed in (("xn--bcher-kva.example", True), ("w.x.xn--bcher-kva.example", True), ("example", False)):
        assert listed.matches(f"https://{host}:8443/a?b") == listed.matches_host(host) == is_listed
    assert not listed.matches("https://another-xn--bcher-kva.example/", "", None)
    assert not Forgotten().matches("https://a.example/") and Forgotten().inputs == {}
    assert selection_of(["\u2603.example"]).matches("http://www.\u2603.example/", "http://xn--n3h.example/x")
    for url in ("w.a.example/x", "//a.example/x", "ftp://a.example/x", "https:a.example/x", "http:\\\\a.example\\x"):
        assert selection_of(["a.example"]).matches(url)
    assert domain_of("https://a.example") is None and domain_of("127.0.0.1") == "127.0.0.1"


@given(st.text(max_size=40))
def test_any_text_can_be_listed(text: str) -> None:
    listed = Forgotten(urls=(url_hash(text),))
    assert listed.matches(text) == bool(text)
    assert not listed.matches(name_of(text)) or text.startswith(f"{REASON}:")
    assert text not in listed.model_dump_json() or len(text) < 8


def test_a_target_with_the_form_of_a_domain_may_be_a_file() -> None:
    found = narrowed(["a.test", "page.html"], ["http://sub.a.test/1", "page.html"])
    assert found == Forgotten(urls=(url_hash("page.html"),), domains=(domain_hash("a.test"),))


def test_targets_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("\ufeffhttp://a.test/1\n\n# no\n a.test \r\nhttp://a.test/1\n")
    assert read_targets([str(tmp_path / "list"), "b.test"]) == ["http://a.test/1", "a.test", "b.test"]
    long = "www.a.test/" + "x" * 300  # no name of a file
    assert read_targets([long]) == [long]
    with pytest.raises(UserError, match="no URL"):
        read_targets(["x" * 9000])


TEXT = story("Tilda")


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.jsonl", "a.html", "a.gz", "a.bz2", "a.xz", "a.parquet", "a.x"])
def test_words_are_found_in_any_file(tmp_path: Path, name: str) -> None:
    path, data = tmp_path / name, TEXT.encode()
    written = {
        **{".gz": gzip.compress(b"one member") + gzip.compress(data), ".bz2": bz2.compress(data)},
        **{".xz": lzma.compress(data), ".txt": data.upper(), ".x": data.upper()},
        ".html": "".join(f"<b>{word}</b>&#32;" for word in TEXT.split()).encode(),
    }
    path.write_bytes(written.get(path.suffix, json.dumps({"deep": [{"text": TEXT}]}).encode()))
    if name == "a.parquet":
        pq.write_table(pa.table({"n": [1], "deep": [[{"text": TEXT}]]}), path)
    for words, found in ((TEXT, [name]), ("nine words that stand in none of these files here", [])):
        assert [trace.file for trace in scan(Folder(tmp_path), Forgotten(), Forgotten(), [words]).traces] == found


def test_a_mention_of_a_page_is_no_trace_but_a_copy_is_reported(tmp_path: Path) -> None:
    rows = [{"url": "http://b.test/", "text": f"{TEXT} See http://a.test/1."}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "copy.txt").write_text(TEXT)
    wanted = selection_of(["http://a.test/1"])
    found = scan(Folder(tmp_path), wanted, wanted, [TEXT])
    assert found.traces == [] and found.mirrors == ["http://b.test/"]
    (tmp_path / "note.txt").write_text("(https://a.test/1), http://a.test/10")
    traces = scan(Folder(tmp_path), wanted, wanted, [TEXT]).traces
    assert [trace.what for trace in traces] == ["a URL: https://a.test/1),"]
    searcher = Searcher(wanted, wanted, [])
    assert searcher.address(["http://a.test/10 a.test/1"]) is None


def test_a_file_that_cannot_be_read_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "tokens.bin").write_bytes(b"\1\0")
    (tmp_path / "tokens.idx").write_bytes(b"MMIDIDX")
    traces = scan(Folder(tmp_path), Forgotten(), Forgotten(), []).traces
    found = [(trace.file, trace.what[:14]) for trace in traces]
    assert found == [(name, "cannot be read") for name in ("a.parquet", "tokens.bin")]
    assert list(pieces(Folder(tmp_path), "tokens.idx"))


def test_forgotten_rows_do_not_count_as_rejected() -> None:
    limits = LimitSettings(min_rows=1, texts=0.5)
    check_reject_rate(limits, "texts", "x", 10, {REASON: 8, "empty": 1})
    check_reject_rate(limits, "texts", "x", 10, {REASON: 10})
    with pytest.raises(RunError, match="rejected 2 of 2 rows"):
        check_reject_rate(limits, "texts", "x", 10, {REASON: 8, "empty": 2})


def test_a_rewriting_that_a_kill_kept_from_its_manifest_keeps_the_reasons(tmp_path: Path) -> None:
    """The rows are gone from the output then, and only the file that no manifest names has the reason."""
    root = Folder(tmp_path)
    step = Step(root, "blacklist", version=1, parameters={}, inputs={}, folder="urls")
    rows = [{"url": f"http://a.test/{number}", "source": "list"} for number in (1, 2)]
    shards = tuple(write_table(step.folder, f"{name}.parquet", pa.Table.from_pylist(rows)) for name in "ab")
    made = step.commit(Outcome(outputs=shards, seen=4, kept=4))
    before = step.folder.read_bytes(MANIFEST)
    wanted = Forgotten(urls=(url_hash("http://a.test/2"),))
    rewrite_step(root, made, wanted, {})
    after = {name: step.folder.read_bytes(name) for name in step.folder.files()}
    assert {"rejected/a.parquet", "rejected/b.parquet"} <= after.keys()
    step.folder.write_bytes(MANIFEST, before)
    write_rows(step.folder, "rejected/c.parquet", [rejected_row(rows[0], "empty")], REJECTED)  # of another run
    rewrite_step(root, made, wanted, {})
    assert {name: step.folder.read_bytes(name) for name in step.folder.files()} == after


def page(url: str, final: str, text: str) -> Page:
    digest_of = hashlib.sha256(text.encode()).hexdigest()
    return Page(url, final, "text/html", None, text.encode(), "2026-01-01T00:00:00Z", digest_of, "cc")


def test_discovered_lists_keep_their_identity_for_later_steps(tmp_path: Path) -> None:
    """Without the aliases the step after the discovery, and with it the whole download, would be done again."""
    root = Folder(tmp_path)
    found = FoundUrls(find_domains(["a.test"])[0], True, 100)
    rows = [
        {"url": f"http://a.test/{n}", "domain": "a.test", "method": "link", "found_in": f"http://a.test/{n - 1}"}
        | {"depth": 1, "modified": None}
        for n in range(1, 4)
    ]
    filled = {field.name: 0 if "int" in str(field.type) else "x" for field in CAPTURES}
    captures = [filled | {"url": f"http://a.test/{n}"} for n in (2, 9)]
    step = Step(root, "discover", version=1, parameters={}, inputs={"domains": digest(["a.test"])})
    records = (
        write_rows(step.folder, "part-00000.parquet", rows, DISCOVERED),
        write_rows(step.folder, "captures/part-00000.parquet", captures, CAPTURES),
    )
    made = step.commit(Outcome(outputs=records, seen=5, kept=5, facts={"captures": 2}))
    fetched = Step(root, "commoncrawl", version=1, parameters={}, inputs={"discover": made})
    pages = [page("http://a.test/2", "http://a.test/2", TEXT), page("http://a.test/9", "http://a.test/9", "other")]
    data = encode_head("part-00000.warc.gz", "2026-01-01T00:00:00Z") + b"".join(map(encode_record, pages))
    fetched.folder.write_bytes("part-00000.warc.gz", data)
    archive = fetched.folder.record("part-00000.warc.gz", rows=2)
    fetched.commit(Outcome(outputs=(archive,), seen=2, kept=2, facts={"bytes": len(TEXT) + 5}))
    [before] = lists_of(root, made, [found.domain])

    forget(("http://a.test/2",), output=str(tmp_path), yes=True)
    rewritten = json.loads((tmp_path / "discover/_manifest.json").read_text())
    assert (rewritten["outcome"]["kept"], rewritten["outcome"]["reasons"]) == (3, {REASON: 2})
    assert rewritten["outcome"]["facts"] == {"captures": 1}
    left = list(read_rows(root / "discover", "part-00000.parquet"))
    assert [row["url"] for row in left] == ["http://a.test/1", "http://a.test/3"]
    assert left[1]["found_in"] == name_of("http://a.test/2")
    crawled = json.loads((tmp_path / "commoncrawl/_manifest.json").read_text())
    assert crawled["inputs"]["discover"] == f"{rewritten['fingerprint']}:{rewritten['content']}"
    assert crawled["outcome"]["facts"] == {"bytes": 5} and crawled["outcome"]["reasons"] == {REASON: 1}
    made = made.model_copy(update={"outcome": Outcome.model_validate(rewritten["outcome"])})
    [after] = lists_of(root, made, [found.domain])
    assert after.identity == before.identity
    assert len(read_forgotten(root).aliases) == 2


def test_the_discovery_drops_what_is_listed() -> None:
    [domain] = find_domains(["a.test"])
    found = FoundUrls(domain, True, 100)
    start = domain.starts[0]
    first = found.add("/1", "link", start, 1)
    assert first is not None
    found.add("/2", "link", first, 1)
    found.add("http://b.test/", "link", first, 1)
    found.drop_forgotten(selection_of(["a.test/1", f"https://a.test{first.path}", "b.test"]))
    assert [row["found_in"] for row in found.rows.values()] == [name_of("http://a.test/1")]
    assert found.reasons == {REASON: 2, "other_host": 0}
    assert not any("a.test/1" in str(row) or "b.test" in str(row["url"]) for row in found.rejected)


def test_mentions_in_settings_and_links_do_not_stop_a_removal(tmp_path: Path) -> None:
    """A contact address of the crawler, a license on the domain, the detail of another host's rejected row."""
    out = tmp_path / "a.test/out"  # a folder with the name of the domain
    root, ledger = Folder(out), pa.schema([*LEDGER, *CONSENT])
    failed = {"source": "a.test/list", "final_url": "", "status": "failed", "reason": "dns", "detail": "", "bytes": 0}
    rows = [
        failed | {"url": f"http://{host}/1", "retryable": False, "licenses": [f"http://{other}/license"], "signals": []}
        for host, other in (("a.test", "c.test"), ("b.test", "a.test"))
    ]
    step = Step(root, "download", version=4, parameters={"user_agent": "x (+http://a.test)"}, inputs={}, folder="pages")
    step.folder.write_bytes("part-00000.warc.gz", EMPTY)
    records = (
        write_rows(step.folder, "ledger/part-00000.parquet", rows, ledger),
        write_table(step.folder, "hosts.parquet", HOSTS.empty_table()),
        write_table(step.folder, "consent.parquet", SIGNALS.empty_table()),
    )
    archive = step.folder.record("part-00000.warc.gz", rows=0)
    dropped = [rejected_row(row, "dns", "a.test has no address") for row in rows]
    rejected = write_rows(step.folder, "rejected/part-00000.parquet", dropped, REJECTED)
    step.commit(Outcome(outputs=(archive,), audit=records, rejected=(rejected,), seen=2, reasons={"dns": 2}))
    (out / "runs").mkdir()
    (out / "runs/note.json").write_text(json.dumps({"output": str(out)}))
    (out / "runs/events.out.tfevents").write_bytes(b"\0\1\2" + TEXT.encode() + b"\0\xff")
    (out / "runs/note.txt").write_text("www.a.test says")

    forget(("a.test",), output=str(out), yes=True)
    left = list(read_rows(root / "pages", "ledger/part-00000.parquet"))
    assert [row["url"] for row in left] == [name_of("http://a.test/1"), "http://b.test/1"]
    assert not any(row["licenses"] for row in left)
    assert [row["host"] for row in read_rows(root / "pages", "hosts.parquet")] == ["", "b.test"]
    made = json.loads((out / "pages/_manifest.json").read_text())
    assert made["outcome"]["reasons"] == {"dns": 1, REASON: 1}
    assert sorted(path.name for path in (out / "runs").iterdir()) == ["events.out.tfevents", "note.json"]
    assert [trace.file for trace in scan(root, Forgotten(), Forgotten(), [TEXT]).traces] == ["runs/events.out.tfevents"]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 6),
    st.none() | st.integers(0, 3),
    st.sets(st.integers(0, 11)),
)
def test_samples_of_documents_hold_their_tokens(
    lengths: list[int], context: int, seed: int | None, chosen: set[int]
) -> None:
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    epoch = Epoch.build(bounds, context, seed, 0)
    documents = [number for number in sorted(chosen) if number < len(lengths) and lengths[number]]
    expected = {
        sample
        for number in documents
        for token in range(bounds[number], bounds[number + 1])
        for sample in epoch.containing(token, token + 1).tolist()
    }
    assert epoch.of_documents(bounds[documents]).tolist() == sorted(expected)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of 30 documents, and a run that has made 30 steps on them, with checkpoints."""
    out = tmp_path_factory.mktemp("training") / "out"
    root = Folder(out)
    write_tokens(root, ROWS)
    write_run(out, CONTEXT, BATCH, STEPS)
    return out


def write_tokens(root: Folder, rows: list[dict[str, Any]]) -> None:
    with Inline(workers=1) as runner:
        shuffled = shuffle(root, documents_of(root, rows), ShuffleSettings(), runner)
        words = tokenizer(root, shuffled, TokenizerSettings(vocab_size=300), runner)
        tokenize(root, shuffled, words, TokenizeSettings(), runner)


@pytest.fixture
def run(out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(out / "runs/tiny-0123abcd", tmp_path / "runs/tiny-0123abcd"))


def wanted_of(*numbers: int) -> Forgotten:
    return Forgotten(urls=tuple(sorted(url_hash(f"https://a.test/{number}") for number in numbers)))


def page_read_late(run: Path) -> int:
    """The first page that a run has read after a checkpoint."""
    return next(number for number in range(30) if read_by(run, wanted_of(number)).checkpoint)


def test_steps_are_those_whose_samples_hold_the_documents(out: Path) -> None:
    """Compared with the samples of the training's own loader, token by token."""
    [run] = find_runs(Folder(out), None)
    samples = Samples(out / "tokens/train/tokens", CONTEXT, 300, 7)
    positions, _ = samples.locate(range(STEPS * BATCH))
    table = {row["url"]: row for row in read_rows(Folder(out / "tokens"), "train/documents.parquet")}
    for numbers in ((3,), (5, 17), (29,)):
        reading = read_by(run, wanted_of(*numbers))
        tokens = [np.arange(table[url]["start"], table[url]["end"]) for url in (f"http://a.test/{n}" for n in numbers)]
        holding = np.flatnonzero(np.isin(positions, np.concatenate(tokens)).any(axis=1))
        assert reading.documents == len(numbers)
        assert list(reading.first_samples) == holding.tolist() and reading.samples == len(holding)
        assert list(reading.first_steps) == sorted({sample // BATCH for sample in holding.tolist()})
        before = reading.first_steps[0] // 2 * 2
        assert reading.checkpoint == (f"step-{before:08d}" if before else None)
        assert len(reading.later) == (STEPS - before) // 2
    assert read_by(run, wanted_of(99)).steps == 0


def test_the_steps_of_a_moved_output_are_known(out: Path, tmp_path: Path) -> None:
    [run] = find_runs(Folder(out), None)
    shutil.copytree(out, tmp_path / "first")
    config = read_run_config(run / CONFIG_FILE)
    first = tmp_path / "first/runs" / run.name
    places = {"data": config.data.model_copy(update={"train": str(tmp_path / "first/tokens/train/tokens")})}
    (first / CONFIG_FILE).write_text(to_toml(config.model_copy(update=places | {"output": str(first)})))
    moved = (tmp_path / "first").rename(tmp_path / "second") / "runs" / run.name
    reading = read_by(moved, wanted_of(3), Folder(tmp_path / "second"))
    assert reading == read_by(run, wanted_of(3)).model_copy(update={"run": str(moved)})
    assert reading.later


def test_the_settings_go_on_from_the_checkpoint(out: Path, run: Path, tmp_path: Path) -> None:
    reading = read_by(run, wanted_of(3)).model_copy(update={"checkpoint": "step-00000020", "first_steps": (20,)})
    path = write_settings(reading)
    assert path is not None
    settings = resolve(PretrainFlowSettings, str(path))
    assert settings.data == str(out) and settings.output == str(tmp_path)
    assert settings.train.checkpoints.init_from == f"{run}/checkpoints/step-00000020"
    assert (settings.train.steps, settings.train.schedule.warmup) == (20, 19)
    assert settings.train.model.hidden == 32 and settings.train.seed == 7
    assert write_settings(reading.model_copy(update={"checkpoint": None})) is None
    # A second removal: checkpoints after that of the first one have read the pages of the first one.
    for checkpoint, expected in (("step-00000026", "20"), ("step-00000010", "10")):
        write_settings(reading.model_copy(update={"checkpoint": checkpoint}))
        first = resolve(PretrainFlowSettings, str(path)).train.checkpoints.init_from
        assert first == f"{run}/checkpoints/step-000000{expected}"


@pytest.mark.parametrize("before", ["step-00000020", None])
def test_checkpoints_that_have_read_the_pages_are_removed(run: Path, tmp_path: Path, before: str | None) -> None:
    names = [path.name for path in list_checkpoints(run)]
    kept = names[: names.index(before) + 1] if before else []
    (run / "checkpoints/best").write_text(f"{names[-2]}\n")
    reading = RunReading(run=str(run), steps=1, checkpoint=before, later=tuple(names[len(kept) :]))
    plan = Removal(targets=("http://a.test/3",), wanted=wanted_of(3), runs=(reading,), delete_checkpoints=True)
    for _ in range(2):  # again, as after a kill
        remove_pages(Folder(tmp_path), plan)
        assert [path.name for path in list_checkpoints(run)] == kept
        assert {path.name for path in (run / "checkpoints").iterdir()} == {*kept, *(["latest"] if kept else [])}
    if before:
        assert newest_checkpoint(run).name == before
        assert (run / "forget.toml").is_file()


def begun_from(out: Path, source: Path, run: Path) -> Path:
    """Write a run of one step that began from weights of another."""
    copied = Path(shutil.copytree(out / "runs/tiny-0123abcd", run, ignore=shutil.ignore_patterns("step-*", "cache")))
    config = (copied / CONFIG_FILE).read_text().replace(f'output = "{out}/runs/tiny-0123abcd"', f'output = "{run}"')
    assert "init_from" not in config and str(run) in config
    (copied / CONFIG_FILE).write_text(config.replace("[checkpoints]", f'[checkpoints]\ninit_from = "{source}"'))
    (copied / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": BATCH * CONTEXT}) + "\n")
    (copied / "checkpoints/step-00000001").mkdir()
    (copied / "checkpoints/step-00000001/manifest.json").write_text("{}")
    return copied


@pytest.mark.parametrize("chain", [1, 2])
def test_weights_that_had_read_the_pages_are_inherited(out: Path, tmp_path: Path, chain: int) -> None:
    """A run that has not read them itself, but began from a checkpoint of one that had, directly or by another."""
    [first] = find_runs(Folder(out), None)
    page = page_read_late(first)
    reading = read_by(first, wanted_of(page))
    cases = (
        (first / "checkpoints" / str(reading.checkpoint), False),
        (first / "checkpoints" / reading.later[0], True),
        (first / "model", True),
        (first, True),
        (tmp_path / "elsewhere/model", False),
    )
    for case, (source, inherits) in enumerate(cases):
        folder = tmp_path / str(case)
        folder.mkdir()
        run = source
        for number in range(chain):
            begun = begun_from(out, run, folder / str(number))
            run = begun / "checkpoints/step-00000001"
        alone = read_by(begun_from(out, Path("none"), folder / "alone"), wanted_of(page))
        found = read_by(begun, wanted_of(page))
        assert found.inherited == (str(first) if inherits else "")
        assert found.steps == alone.steps
        if inherits:
            assert found.checkpoint is None and found.later == ("step-00000001",)
            assert write_settings(found) is None
            lines = _run_lines(found, delete=False)
            assert f"began from weights of {first}, which had read the pages" in "\n".join(lines)
            assert "train again from other weights" in lines[-1]


def test_a_model_merged_from_a_later_checkpoint_is_removed(run: Path, tmp_path: Path) -> None:
    for folder in ("model", "merge"):
        (run / folder).mkdir()
        (run / folder / "x").write_text("weights")
    page = page_read_late(run)
    reading = read_by(run, wanted_of(page))
    assert reading.merged and f"model merged from a checkpoint: {run}/model" in "\n".join(_run_lines(reading, False))
    folder = "runs/tiny-0123abcd"
    step = Step(Folder(tmp_path), "train", version=1, parameters={}, inputs={}, folder=folder, shared=True)
    for name, is_merged in ((str(reading.checkpoint), False), (reading.later[-1], True)):
        step.commit(Outcome(outputs=(step.folder.record(f"checkpoints/{name}/manifest.json"),)))
        assert read_by(run, wanted_of(page)).merged == is_merged
    plan = Removal(targets=("http://a.test/3",), wanted=wanted_of(page), delete_checkpoints=True)
    remove_pages(Folder(tmp_path), plan.model_copy(update={"runs": (read_by(run, wanted_of(page)),)}))
    assert not (run / "model").exists() and not (run / "merge").exists() and (run / CONFIG_FILE).exists()


def test_tokens_outside_of_the_output_are_named(out: Path, tmp_path: Path, memory: str) -> None:
    """Of a mixture, and those copied from an object store, with which a training does not go on."""
    run = find_runs(Folder(out), None)[0]
    page = page_read_late(run)
    assert read_by(run, wanted_of(page), Folder(out)).outside == ()
    assert read_by(run, wanted_of(page), Folder(tmp_path)).outside == (str(out),)
    Step(Folder(tmp_path), "blacklist", version=1, parameters={}, inputs={}, folder="urls").commit(Outcome())
    plan = plan_removal(Folder(tmp_path), [f"http://a.test/{page}"], str(run))
    assert plan.runs[0].outside == (str(out),) and not plan.found.steps
    assert f"reads tokens with the pages in {out}: forget them there too" in "\n".join(_run_lines(plan.runs[0], False))

    shutil.copytree(out / "tokens", tmp_path / "local/inputs/0a1b/tokens")
    copied = Path(shutil.copytree(run, tmp_path / "local/runs/tiny-0123abcd"))
    config = (copied / CONFIG_FILE).read_text().replace(f"{out}/tokens", f"{tmp_path}/local/inputs/0a1b/tokens")
    (copied / CONFIG_FILE).write_text(config)
    fsspec.filesystem("memory").put(f"{out}/tokens/", "/forget-runs/tokens/", recursive=True)
    reading = read_by(copied, wanted_of(page), Folder(memory))
    assert reading.outside == (str(tmp_path / "local"),) and reading.data == memory
    path = write_settings(reading)
    assert path is not None and resolve(PretrainFlowSettings, str(path)).data == memory
    # A removal of the copies comes after it, and does not know where they are from.
    own = read_by(copied, wanted_of(page), Folder(tmp_path / "local"))
    assert (own.outside, own.data) == ((), "")
    for data in (memory, str(tmp_path / "local/inputs/0a1b")):
        path = write_settings(own)
        assert path is not None and resolve(PretrainFlowSettings, str(path)).data == data
        path.unlink()


def test_steps_on_tokens_that_were_made_again_are_not_known(out: Path, tmp_path: Path) -> None:
    """Those of a removal before have other documents, or are gone; those of another corpus of a mixture are known."""
    page = next(number for number in range(30) if read_by(find_runs(Folder(out), None)[0], wanted_of(number)).steps)
    copy = Path(shutil.copytree(out, tmp_path / "out"))
    run = write_recorded(copy, tmp_path, [copy, out])
    before = read_by(run, wanted_of(page))
    assert before.documents == 2 and before.steps and not before.note
    root, kept = Folder(copy), [one for one in ROWS if one["url"] != "http://a.test/29"]
    shutil.rmtree(copy / "tokens")
    reading = read_by(run, wanted_of(page))
    assert reading.documents == 1 and 0 < reading.samples < before.samples and reading.steps
    assert "has no table of the train documents" in reading.note
    assert f"not known of all its tokens: {copy}/tokens has no table" in "\n".join(_run_lines(reading, False))
    write_tokens(root, kept)
    reading = read_by(run, wanted_of(page))
    assert reading.steps == 0 and reading.checkpoint is None
    assert reading.note.startswith(f"{copy}/tokens/train/tokens has other tokens than those that it was trained on")
    assert read_by(run, wanted_of(29)).note == ""  # it is in none of the new tokens


def write_recorded(out: Path, folder: Path, outputs: list[Path]) -> Path:
    [run] = find_runs(Folder(out), None)
    prefixes = [f"{output}/tokens/train/tokens" for output in outputs]
    config = read_run_config(run / CONFIG_FILE)
    corpora = tuple(Corpus(prefix=prefix) for prefix in prefixes)
    changed = config.model_copy(update={"data": config.data.model_copy(update={"train": corpora})})
    (run / CONFIG_FILE).write_text(to_toml(changed))
    identities = [tokens_identity(open_tokens(prefix))[0] for prefix in prefixes]
    notes = zip(prefixes, identities, strict=True)
    data = tuple(CorpusNote(prefix=prefix, identity=name, tokens=1, share=0.5) for prefix, name in notes)
    (run / "run.json").write_text(RunRecord(data=data).model_dump_json())
    return run


def test_a_tokenizer_trained_on_the_pages_is_named_and_can_be_kept(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = out / "runs" / "tiny-0123abcd"
    reading = read_by(run, wanted_of(page_read_late(run)))
    _print(Folder(out), Removal(targets=(), wanted=Forgotten(), removed=("tokenizer",), runs=(reading,)))
    assert f"copy {out}/tokenizer before --yes" in capsys.readouterr().out
    kept = tokenizer(Folder(tmp_path), None, TokenizerSettings(name="folder", folder=f"{out}/tokenizer"), Inline())
    for record in kept.outputs:
        assert (tmp_path / kept.folder / record.name).read_bytes() == (out / "tokenizer" / record.name).read_bytes()


def test_a_run_elsewhere_is_said_not_to_be_searched(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = out / "runs" / "tiny-0123abcd"
    outside = shutil.copytree(inside, tmp_path / "elsewhere")
    roundabout = Path(f"{out}/../../{tmp_path.name}/elsewhere")  # its parts begin with the output
    assert out.parents[1] == tmp_path.parent
    for run, is_said in ((inside, False), (outside, True), (roundabout, True)):
        forget(("http://a.test/3",), output=str(out), run=str(run))
        assert ("its own files are not searched" in capsys.readouterr().out) == is_said


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://forget-runs"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/forget-runs", recursive=True)


def test_a_run_is_found_by_name_or_path(out: Path, tmp_path: Path) -> None:
    root = Folder(out)
    assert find_runs(root, "tiny-0123abcd") == find_runs(Folder("memory://none"), str(out / "runs/tiny-0123abcd"))
    with pytest.raises(UserError, match="there is no run other"):
        find_runs(root, "other")
    config = (out / "runs/tiny-0123abcd" / CONFIG_FILE).read_text()
    (tmp_path / CONFIG_FILE).write_text(config.replace("/train/", "/x/"))
    assert "x" in read_by(tmp_path, wanted_of(1)).note
