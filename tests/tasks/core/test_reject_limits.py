"""Reject limits: what passes, what stops the run, independence of the order, and resuming."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.settings import DataprepSettings
from gpt2train.errors import RunError
from gpt2train.store.manifest import Folder, Manifest, Outcome
from tasks.clean.step import CleanSettings, clean
from tasks.core.reject_limits import LimitSettings, Tally, check_reject_rate
from tasks.core.step import Step
from tests.tasks.corpus import Inline, extracted

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


def run(root: Folder, documents: Manifest, **limits: Any) -> tuple[Manifest, list[str]]:
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
        run(root, documents, clean=0.5)
    before = raised.value.__notes__[0].split(",")
    assert 5 <= len(before) <= 6  # of eight: one may be under way while the fifth is judged
    assert not (tmp_path / "clean" / "_manifest.json").exists()
    manifest, done = run(root, documents, clean=0.9)
    assert [*before, *done] == [f"part-{n:05d}" for n in range(8)]
    assert manifest.outcome.reasons == {"too_short": 1188}
    assert run(root, documents, clean=1.0) == (manifest, [])  # a limit changes no fingerprint


def test_every_limit_belongs_to_a_step_of_the_recipe() -> None:
    """A limit under a name that no step has would never be checked."""
    fields = set(DataprepSettings.model_fields)
    assert set(LimitSettings.model_fields) - {"min_rows"} <= fields
