"""The step contract: fingerprints, manifests, skipping, resuming, outputs that vanish, shards, reject limits."""

import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.settings import DataprepSettings
from gpt2train.errors import RunError, UserError
from gpt2train.store.folder import FileRecord
from gpt2train.store.lost_files import lost_files_error, translate_lost_files
from gpt2train.store.manifest import Folder, Manifest, Outcome, canonical, fingerprint, need_manifest, read_manifest
from tasks.clean.step import CleanSettings, clean
from tasks.core.reject_limits import LimitSettings, Tally, check_reject_rate
from tasks.core.runner import Runner
from tasks.core.shards import (
    ROW_GROUP,
    commit_rows,
    in_groups,
    read_rows,
    read_table,
    rejected_row,
    sample_texts,
    write_rows,
    write_table,
)
from tasks.core.step import Step
from tasks.core.timings import cpu_seconds, read_timings
from tests.tasks.corpus import Inline, extracted

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)
SCHEMA = pa.schema([("id", pa.string()), ("url", pa.string())])


def double(folder: Folder, name: str, item: int, calls: str) -> Outcome:
    """A small batch: one row, and a line in a log file that counts the calls."""
    with Path(calls).open("a") as file:
        file.write(f"{item}\n")
    return commit_rows(folder, f"{name}.parquet", [{"id": str(2 * item), "url": "u"}], [], SCHEMA, {"sum": item})


def make_step(root: Folder, **parameters: object) -> Step:
    return Step(root, "double", version=1, parameters=parameters, inputs={"numbers": "x"})


def run(root: Folder, calls: Path, items: list[int], **parameters: object) -> Manifest:
    step = make_step(root, **parameters)
    with Runner(workers=2) as runner:
        if done := runner.finished(step):
            return done
        return step.commit(Outcome.total(runner.batches(step, "part", items, double, str(calls), where="thread")))


@given(JSON)
def test_the_canonical_form_depends_on_the_value_alone(value: object) -> None:
    assert json.loads(canonical(value)) == value
    if isinstance(value, dict):
        assert canonical(dict(reversed(value.items()))) == canonical(value)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(st.text(), JSON, max_size=4))
def test_the_fingerprint_depends_on_each_parameter(one: dict[str, object], other: dict[str, object]) -> None:
    same = fingerprint("s", 1, one, {}) == fingerprint("s", 1, other, {})
    assert same == (canonical(one) == canonical(other))


def test_a_second_run_is_cached_and_a_changed_parameter_runs_again(tmp_path: Path) -> None:
    root, calls = Folder(tmp_path / "out"), tmp_path / "calls"
    first = run(root, calls, [1, 2, 3], k=1)
    assert first.outcome.facts == {"sum": 6}
    assert run(root, calls, [1, 2, 3], k=1) == first
    assert sorted(calls.read_text().split()) == ["1", "2", "3"]
    (root / "double").write_bytes("README.md", b"written by hand, after the step")
    assert run(root, calls, [1, 2, 3], k=1) == first and (root / "double").size("README.md")
    second = run(root, calls, [1, 2], k=2)
    assert second.fingerprint != first.fingerprint
    assert len(calls.read_text().split()) == 5
    # A commit removes what no manifest names any more: the third part of the first run, and files of others.
    assert (root / "double").files() == ["_manifest.json", "part-00000.parquet", "part-00001.parquet"]


def test_files_of_the_user_are_neither_removed_nor_written_over(tmp_path: Path) -> None:
    """As texts/ of the working folder with `--documents texts --output .`."""
    root = Folder(tmp_path)
    (root / "double").write_bytes("sub/essay.txt", b"mine")
    with pytest.raises(UserError, match=r"double holds files of yours, such as sub/essay.txt, and the step double"):
        run(root, tmp_path / "calls", [1])
    assert (root / "double").files() == ["sub/essay.txt"]


def test_a_step_that_was_killed_before_its_first_batch_goes_on(tmp_path: Path) -> None:
    root, calls = Folder(tmp_path / "out"), tmp_path / "calls"
    make_step(root).begin()
    assert make_step(root).reasons_of(Outcome()) == ""  # of a run that kept nothing
    double(root / "double", "part-00000", 1, str(calls))  # no record of the batch
    assert run(root, calls, [1, 2]).outcome.facts == {"sum": 3}
    assert (root / "double").files() == ["_manifest.json", "part-00000.parquet", "part-00001.parquet"]


class Cut(BaseException):
    """Simulated kill."""


@pytest.mark.parametrize("act", ["write_bytes", "remove"])
def test_old_files_stay_until_the_new_manifest_is_written(
    tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at each write and removal of a second commit: one of the manifests is there with all its files."""
    root, calls, real = Folder(tmp_path / "out"), tmp_path / "calls", getattr(Folder, act)

    def commit(cut_at: int) -> int:
        """Commit three files, then two others under the same fingerprint, as a retry does; the number of instants."""
        step, instants = make_step(root), itertools.count()
        step.folder.remove(*step.folder.files())
        step.commit(Outcome.total(double(step.folder, f"old-{n}", n, str(calls)) for n in range(3)))
        new = Outcome.total(double(step.folder, f"new-{n}", n, str(calls)) for n in range(2))

        def counted(self: Folder, *args: object) -> object:
            if next(instants) == cut_at:
                raise Cut
            # One name at a time, as the disk does.
            return [real(self, name) for name in args] if act == "remove" else real(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Folder, act, counted)
            step.commit(new)
        return next(instants)

    instants = commit(-1)
    assert instants >= 2
    for instant in range(instants):
        with pytest.raises(Cut):
            commit(instant)
        with Runner(workers=1) as runner:
            manifest = runner.finished(make_step(root))
        assert manifest is not None, instant
        names = [record.name for record in manifest.outputs]
        assert names in ([f"old-{n}.parquet" for n in range(3)], [f"new-{n}.parquet" for n in range(2)])
        if (act, instant) != ("write_bytes", 0):  # the commit had begun: the next run sweeps what it left
            assert set((root / "double").files()) == {"_manifest.json", *names}, instant


def test_committed_batches_are_not_run_again(tmp_path: Path) -> None:
    root, calls = Folder(tmp_path / "out"), tmp_path / "calls"
    step = make_step(root)
    step.begin()
    step.commit_batch("part-00000", double(step.folder, "part-00000", 1, str(calls)))
    step.folder.write_bytes("part-00001.parquet", b"half a file of a killed run")
    calls.write_text("")
    manifest = run(root, calls, [1, 2])
    assert calls.read_text().split() == ["2"]
    ids = [row["id"] for record in manifest.outputs for row in read_rows(root / "double", record.name)]
    assert ids == ["2", "4"]


def test_a_damaged_output_is_written_again_and_verify_finds_a_flipped_bit(tmp_path: Path) -> None:
    root, calls = Folder(tmp_path / "out"), tmp_path / "calls"
    first = run(root, calls, [1, 2])
    victim = Path((root / "double").path("part-00001.parquet"))
    for damage in (victim.unlink, lambda: victim.write_bytes(victim.read_bytes()[:-1])):
        damage()
        assert run(root, calls, [1, 2]) == first
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    step = make_step(root)
    assert step.finished() is not None
    step.verify = True
    assert step.finished() is None


def test_manifest_of_an_unfinished_step_is_not_trusted(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    folder.write_bytes("_manifest.json", b'{"step": "half')
    assert read_manifest(folder) is None
    with pytest.raises(RunError, match="no finished step"):
        need_manifest(folder)
    (tmp_path / "file").write_text("")  # an unwritable output is reported with the remedy
    with pytest.raises(UserError, match="--output"):
        Folder(tmp_path / "file" / "out").check_writable()


def test_rejected_rows_hold_an_excerpt_only(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    row = rejected_row({"id": "1", "url": "u", "text": "x" * 1000}, "too_short", "3 tokens, 128 expected")
    outcome = commit_rows(folder, "p.parquet", [], [row], SCHEMA)
    assert outcome.reasons == {"too_short": 1}
    assert len(next(read_rows(folder, "rejected/p.parquet"))["text"]) == 300
    # The bytes of Parquet files depend on rows alone.
    rows = [{"id": str(i), "url": "u"} for i in range(3000)]
    first = write_rows(Folder(tmp_path / "a"), "p.parquet", rows, SCHEMA)
    second = write_rows(Folder(tmp_path / "b"), "p.parquet", rows, SCHEMA)
    assert first == second


def test_timings_include_the_cpu_time_of_workers(tmp_path: Path) -> None:
    before = cpu_seconds()
    with Runner(workers=1) as runner:
        runner.pool.call(sum, range(20_000_000))
        assert cpu_seconds() - before > 0.1
    run(Folder(tmp_path), tmp_path / "calls", [1])
    timing = read_timings(Folder(tmp_path))["double"]
    assert timing["rows"] == 1 and timing["cpu_seconds"] >= 0 and timing["seconds"] >= 0


def remove_first(folder: Folder, name: str, item: str) -> Outcome:
    shutil.rmtree(item)
    Path(item, "part-00000.parquet").read_bytes()
    return Outcome()


def remove_while_writing(folder: Folder, name: str, item: str) -> Outcome:
    with folder.writing("part-00000.parquet") as draft:
        draft.write_bytes(b"x")
        shutil.rmtree(item)
    return Outcome()


@pytest.mark.parametrize(("work", "gone"), [(remove_first, "clean"), (remove_while_writing, "dedup")])
def test_a_batch_names_the_folder_that_was_removed(tmp_path: Path, work: object, gone: str) -> None:
    (tmp_path / "out" / gone).mkdir(parents=True)
    step = Step(Folder(tmp_path / "out"), "dedup", version=1, parameters={}, inputs={})
    with Runner(workers=1) as runner, pytest.raises(UserError, match=f"out/{gone} was removed .*; run again"):
        runner.batches(step, "part", [str(tmp_path / "out" / gone)], work, where="thread")  # type: ignore[arg-type]


def test_the_folder_that_was_removed_is_named_and_files_of_others_keep_their_errors(tmp_path: Path) -> None:
    root = Folder(tmp_path / "out")
    with pytest.raises(UserError, match=r"/out was removed during the run"), translate_lost_files(root):
        Path(root.path("clean/part-00000.parquet")).read_bytes()
    write_table(root / "clean", "part-00000.parquet", pa.table({"id": ["a"]}))
    shutil.rmtree((root / "clean").path())
    with pytest.raises(UserError, match=r"/out/clean was removed"), translate_lost_files(root):
        read_table(root / "clean", "part-00000.parquet")
    named = FileNotFoundError(2, f"Failed to open local file '{tmp_path}/out/clean/part-00000.parquet'")  # by pyarrow
    assert "out/clean was removed" in str(lost_files_error(root, named))
    with pytest.raises(FileNotFoundError), translate_lost_files(root):
        (tmp_path / "outside.txt").read_bytes()
    with pytest.raises(IsADirectoryError), translate_lost_files(root):
        (tmp_path / "out").read_bytes()


def test_a_read_only_output_is_named_with_the_reason(tmp_path: Path) -> None:
    locked = tmp_path / "out" / "clean"
    locked.mkdir(parents=True)
    if os.geteuid() == 0:  # permissions do not bind root, but a read-only mount does
        bound = subprocess.run(["mount", "--bind", str(locked), str(locked)], capture_output=True).returncode == 0
        if not bound:
            pytest.skip("mounting is not allowed here")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(locked)], check=True)
    locked.chmod(0o500) if os.geteuid() else None
    try:
        said = r"cannot use .*/out/clean.*; give it back its permissions"
        with pytest.raises(UserError, match=said), translate_lost_files(Folder(tmp_path / "out")):
            (locked / "new.txt").write_bytes(b"x")
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "-l", str(locked)], check=True)
        locked.chmod(0o700)


def test_shards_are_grouped_within_bounds() -> None:
    def record(rows: int, size: int = 1) -> FileRecord:
        return FileRecord(name="x", bytes=size, sha256="", rows=rows)

    def cut(*records: FileRecord) -> list[list[int]]:
        return [list(places) for places in in_groups(records, 10, 100, 4)]

    assert cut() == [[]]
    assert cut(record(11)) == [[0]]
    assert cut(*[record(4)] * 5) == [[0, 1], [2, 3], [4]]
    assert cut(record(1, 60), record(1, 60), record(1, 40)) == [[0], [1, 2]]
    assert cut(*[record(10)] * 16) == [[n, n + 1, n + 2, n + 3] for n in (0, 4, 8, 12)]


def test_a_sample_is_of_evenly_spaced_texts_and_reads_the_row_groups_that_it_needs(tmp_path: Path) -> None:
    folder, draw = Folder(tmp_path), random.Random(3)
    texts = [f"{row} " + "é" * draw.randrange(400) for row in range(3 * ROW_GROUP + 17)]
    write_table(folder, "a.parquet", pa.table({"text": pa.array(texts, pa.large_string())}))
    spaced = [text.encode() for text in texts[:: len(texts) // 64]]
    whole = sample_texts(folder, ["a.parquet"], 1 << 20)
    assert whole == [raw.decode() for raw in spaced]

    found = sample_texts(folder, ["a.parquet"] * 2, 8192)
    assert found[: len(found) // 2] == found[len(found) // 2 :]
    assert 2048 < sum(len(text.encode()) for text in found[: len(found) // 2]) <= 4096
    assert [text[:9] for text in found[: len(found) // 2]] == [text[:9] for text in whole[: len(found) // 2]]

    last = pq.read_metadata(tmp_path / "a.parquet").row_group(2).column(0)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    start = last.dictionary_page_offset or last.data_page_offset
    damaged[start : start + 64] = b"\xff" * 64
    (tmp_path / "a.parquet").write_bytes(damaged)
    assert sample_texts(folder, ["a.parquet"] * 2, 8192) == found  # of the first row group
    for read in (lambda: sample_texts(folder, ["a.parquet"], 1 << 20), lambda: read_table(folder, "a.parquet")):
        with pytest.raises(RunError, match=r"a\.parquet is not the Parquet file expected"):
            read()
    with pytest.raises(FileNotFoundError):
        read_table(folder, "absent.parquet")


def test_a_local_table_is_read_by_arrow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of Arrow may free a file when the process ends: one of Python would need the interpreter then."""
    folder, table = Folder(tmp_path), pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    write_table(folder, "a.parquet", table)
    monkeypatch.delattr(Folder, "open")
    assert read_table(folder, "a.parquet", ["b", "a"]).equals(table.select(["b", "a"]))
    assert read_table(folder, "a.parquet", ["b"], [("a", ">", 1)])["b"].to_pylist() == ["y", "z"]


WORDS = "the library waits for the reply of the server and gives up when it does not come in time at all "


@pytest.mark.parametrize(
    ("step", "seen", "rejected", "stops"),
    [
        ("download", 100_000, 75_000, False),  # dead links
        ("download", 100_000, 96_000, True),
        ("clean", 100_000, 99_000, True),
        ("clean", 1000, 950, False),  # just at the limit
        ("clean", 1000, 951, True),
        ("clean", 999, 998, False),  # too few rows to decide
        ("clean", 3, 3, True),  # but nothing is left
        ("clean", 0, 0, False),
        ("decontaminate", 10_000, 6_000, True),
        ("shuffle", 10_000, 10_000, False),  # a step without a limit
    ],
)
def test_the_defaults_stop_at_their_limits(step: str, seen: int, rejected: int, stops: bool) -> None:
    said = f"{step} rejected .* limits.{step} = .*out/x/rejected.*raise limits.{step}"
    with pytest.raises(RunError, match=said) if stops else contextlib.nullcontext():
        check_reject_rate(LimitSettings(), step, "out/x", seen, {"too_short": rejected})


def test_the_error_names_the_most_frequent_reasons() -> None:
    reasons = {f"reason_{n}": n for n in range(1, 10)} | {"too_short": 2000}
    with pytest.raises(RunError) as raised:
        check_reject_rate(LimitSettings(), "clean", "out/clean", 2045, reasons)
    assert "2,045 of 2,045 rows, 100.0%" in str(raised.value)
    most = "(too_short 2,000, reason_9 9, reason_8 8, reason_7 7, reason_6 6, reason_5 5, others 10)"
    assert most in str(raised.value)
    check_reject_rate(LimitSettings(clean=1), "clean", "out/clean", 2045, reasons)  # everything may be rejected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8), st.randoms(use_true_random=False))
def test_stopping_does_not_depend_on_the_order_of_batches(counts: list[tuple[int, int]], order: Any) -> None:
    """The plain rule: some beginning of the items, of at least `min_rows` rows, is over the limit."""
    limits = LimitSettings(min_rows=20, clean=0.5)
    batches = {f"part-{n:05d}": (kept + dropped, {"too_short": dropped}) for n, (kept, dropped) in enumerate(counts)}
    sums = [(sum(map(sum, counts[:n])), sum(dropped for _, dropped in counts[:n])) for n in range(1, len(counts) + 1)]
    expected = next((pair for pair in sums if pair[0] >= 20 and pair[1] > 0.5 * pair[0]), None)
    said = None
    tally = Tally(limits, "clean", "out/clean", list(batches))
    for name in order.sample(list(batches), len(batches)):
        try:
            tally.add(name, *batches[name])
        except RunError as error:
            said = str(error)
            break
    assert (said is None) == (expected is None)
    if expected:
        assert f"rejected {expected[1]:,} of {expected[0]:,} rows" in str(said)


def corpus(root: Folder) -> Manifest:
    """Eight shards of 200 documents: from the third on hardly one of them is long enough."""
    texts = [WORDS * (12 if n < 400 or n % 100 == 0 else 2) + f"number {n}" for n in range(1600)]
    rows = [{"id": f"{n}", "url": f"http://a.example/{n}", "text": text} for n, text in enumerate(texts)]
    return extracted(root, *(rows[start : start + 200] for start in range(0, 1600, 200)))


def clean_corpus(root: Folder, documents: Manifest, **limits: Any) -> tuple[Manifest, list[str]]:
    done: list[str] = []

    class Noting(Inline):
        def batches(self, step: Step, *args: Any, **options: Any) -> list[Outcome]:
            commit = step.commit_batch
            step.commit_batch = lambda name, what: (done.append(name), commit(name, what))[1]  # type: ignore[method-assign]
            return super().batches(step, *args, **options)

    settings = CleanSettings.model_validate({"language": {"keep": ("any",)}})
    with Noting(1, limits=LimitSettings(**limits)) as runner:
        try:
            return clean(root, documents, settings, runner), done
        except RunError as error:
            error.add_note(",".join(done))
            raise


def test_a_step_stops_early_and_resumes_with_a_higher_limit(tmp_path: Path) -> None:
    root = Folder(tmp_path)
    documents = corpus(root)
    with pytest.raises(RunError, match=r"clean rejected 594 of 1,000 rows, 59.4%.*too_short 594") as raised:
        clean_corpus(root, documents, clean=0.5)
    before = raised.value.__notes__[0].split(",")
    assert 5 <= len(before) <= 6  # of eight: one may be under way while the fifth is judged
    assert not (tmp_path / "clean" / "_manifest.json").exists()
    manifest, done = clean_corpus(root, documents, clean=0.9)
    assert [*before, *done] == [f"part-{n:05d}" for n in range(8)]
    assert manifest.outcome.reasons == {"too_short": 1188}
    assert clean_corpus(root, documents, clean=1.0) == (manifest, [])  # a limit changes no fingerprint


def test_every_limit_belongs_to_a_step_of_the_recipe() -> None:
    """A limit under a name that no step has would never be checked."""
    fields = set(DataprepSettings.model_fields)
    assert set(LimitSettings.model_fields) - {"min_rows"} <= fields
