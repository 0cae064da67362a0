"""`gpt2train trace --text`, `data index` and `data contamination`: from a text to pages, filters and training steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt2train.cli import app, run_command
from gpt2train.config import CONFIG_FILE, RunConfig, to_toml
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.runs.contamination import measure
from gpt2train.runs.documents import document_steps, look_up
from gpt2train.runs.text_trace import TextTracer, find_source
from gpt2train.settings import build
from gpt2train.store.output import Folder, Output, read_manifest
from tasks.report.step import REPORT, ReportSettings, report
from tests.gpt2train.runs.indexed_corpus import make_indexed
from tests.tasks.corpus import Inline, row

pytest.importorskip("pydivsufsort", reason="needs the extra trace")

CONTEXT, BATCH, STEPS = 16, 2, 40
TEXTS = [
    f"Chapter {n}. The {'old red fox and the grey wolf '[: n % 9 + 9]}met at gate {n * 7}. Grüße!" for n in range(60)
]
ROWS = [row(text, split=("train", "train", "valid")[n % 3]) | {"date": "2020-02-03"} for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_indexed(tmp_path_factory.mktemp("traced"), ROWS)


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two corpora, of which the other one has the same documents twice as often, and that has begun."""
    place = tmp_path_factory.mktemp("run")
    shutil.copytree(root, place / "other")
    shutil.copytree(root / "tokenizer", place / "tokenizer")
    weights = {root: 1, place / "other": 2}
    corpora = [{"prefix": f"{folder}/tokens/train/tokens", "weight": weight} for folder, weight in weights.items()]
    settings = {"model": {"context": CONTEXT}, "seed": 7, "vocab": 300, "output": str(place), "schedule": {"warmup": 2}}
    ramp = {"start": BATCH, "increment": BATCH, "samples": 24}
    batch = {"batch": {"global_batch": 2 * BATCH, "micro_batch": BATCH, "ramp_up": ramp}}
    config = build(RunConfig, settings, {"data": {"train": corpora}}, batch)
    (place / CONFIG_FILE).write_text(to_toml(config))
    rows = [{"step": step, "tokens": samples * CONTEXT} for step, samples in enumerate(sample_counts(), 1)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return place


def sample_counts() -> list[int]:
    """Samples after each step: the batch grows from 2 to 4 after 24 samples."""
    return np.cumsum([BATCH] * 12 + [2 * BATCH] * (STEPS - 12)).tolist()


def test_a_text_leads_to_its_documents(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracer = TextTracer(find_source(root))
    chosen = ROWS[4]
    text = f"zzzz {chosen['text'][3:40]} qqq {chosen['text']}"
    found = tracer.trace_text(text)
    words = load_tokenizer(root / "tokenizer")
    ids = words.encode(text).ids
    assert found.tokens == len(ids) and found.covered <= found.tokens
    whole = found.spans[-1]
    assert whole.characters is not None and text[slice(*whole.characters)] == whole.text
    assert whole.text.endswith(chosen["text"][2:]) and whole.count == 1
    assert (whole.places[0].doc_id, whole.places[0].url) == (chosen["id"], chosen["url"])
    details = tracer.details(0, whole.places[0].position, whole.end - whole.start)
    assert details.text == whole.text and details.after.startswith("<|endoftext|>") is True
    record = details.record
    assert record is not None and (record.text, record.date) == (chosen["text"], "2020-02-03")
    assert [step.step for step in record.steps] == ["clean", "shuffled"]
    assert record.steps[0].values["tokens"] == chosen["tokens"] and record.complete
    assert details.reading is None  # no run

    assert run_command(app, ["trace", "--text", text, "--data", str(root)]) == 0
    shown = capsys.readouterr().out
    assert chosen["url"] in shown and f"tokens {chosen['tokens']}" in shown and "date 2020-02-03" in shown
    assert run_command(app, ["trace", "--text", "nothing like it", "--data", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == []


def test_the_steps_are_those_that_read_the_span(root: Path, run: Path) -> None:
    """Compared with the samples of the training's own loader, over a mixture and a growing batch."""
    assert run_command(app, ["data", "index", str(run)]) == 0
    tracer = TextTracer(find_source(run))
    assert [index.tokens for index in tracer.indexes] == [tracer.indexes[0].tokens] * 2
    assert tracer.source.config is not None
    data = packed_data(tracer.source.config, "train")
    counts = sample_counts()
    batch = data.batch(range(counts[-1]))
    samples = np.concatenate([batch.tokens.numpy(), batch.targets.numpy()[:, -1:]], axis=1)
    words = load_tokenizer(root / "tokenizer")
    for chosen in [one for one in ROWS if one["split"] == "train"][:12]:
        found = tracer.trace_text(chosen["text"], places=100)
        span = max(found.spans, key=lambda one: one.end - one.start)
        assert span.counts == (1, 1) and [place.corpus for place in span.places] == [0, 1]
        read = set[int]()
        for place in span.places:
            details = tracer.details(place.corpus, place.position, span.end - span.start)
            assert details.reading is not None
            assert details.reading.count == len(details.reading.steps)
            read |= set(details.reading.steps)
            first = np.searchsorted(counts, details.reading.samples, side="right").tolist()
            assert sorted(set(first)) == list(details.reading.steps)
        marker = words.encode(chosen["text"][8:40]).ids[2:10]  # lies within the span
        windows = np.lib.stride_tricks.sliding_window_view(samples, len(marker), axis=1)
        holding = np.flatnonzero((windows == marker).all(axis=2).any(axis=1))
        unique = sum(" ".join(one["text"].split()).count(words.decode(marker)) for one in ROWS) == 1
        if unique:
            assert {int(np.searchsorted(counts, sample, side="right")) for sample in holding} <= read
    assert tracer.trace_text("zz").spans == ()


def test_samples_of_a_span_equal_a_scan(run: Path) -> None:
    """Each token of the corpus, each epoch: the samples that hold it."""
    source = find_source(run)
    assert source.config is not None
    corpus = packed_data(source.config, "train").corpora[0]
    until = corpus.per_epoch * 2 + 3
    offsets, _ = corpus.locate(range(until))
    bounds = TextTracer(source).indexes[0].bounds
    for document in range(0, len(bounds) - 1, 5):
        start, end = int(bounds[document]) + 2, min(int(bounds[document]) + 9, int(bounds[document + 1]))
        expected = np.flatnonzero(((offsets >= start) & (offsets < end)).any(axis=1))
        assert corpus.containing(start, end, until).tolist() == expected.tolist()


def test_token_files_without_a_table_of_documents(root: Path, tmp_path: Path) -> None:
    """Made elsewhere, or by an older release: spans are found, what is not known is None."""
    for file in (root / "tokens" / "train").glob("tokens*"):
        shutil.copy(file, tmp_path / file.name.replace("tokens", "mine"))
    shutil.copytree(root / "tokenizer", tmp_path / "tokenizer")
    prefix = str(tmp_path / "mine")
    with pytest.raises(UserError, match="no index of these tokens; build it with gpt2train data index"):
        TextTracer(find_source(prefix), tmp_path / "token_index")
    # The same tokens, so that the index of the data steps serves as well.
    tracer = TextTracer(find_source(prefix), root / "token_index")
    [span] = tracer.trace_text(TEXTS[0][5:], min_tokens=12).spans
    place = span.places[0]
    assert (place.doc_id, place.url) == (None, None)
    details = tracer.details(place.corpus, place.position, 12)
    assert details.record is None and details.reading is None and details.text


def test_one_part_of_token_files_is_indexed(root: Path, tmp_path: Path) -> None:
    prefix = str(root / "tokens" / "train" / "tokens")
    weights = ["--weights", "1,1,0", "--output", str(tmp_path)]
    assert run_command(app, ["data", "index", prefix, *weights]) == 0
    assert run_command(app, ["data", "index", prefix, *weights, "--split", "valid"]) == 0
    parts = [TextTracer(find_source(prefix, part, "1,1,0"), tmp_path) for part in ("train", "valid")]
    texts = [one["text"] for one in ROWS if one["split"] == "train"]
    found = [[part.trace_text(text) for text in texts] for part in parts]
    hits = [[any(span.end - span.start == one.tokens for span in one.spans) for one in part] for part in found]
    assert all(one != other for one, other in zip(*hits, strict=True)) and sum(hits[0]) == len(texts) // 2


def test_documents_on_an_object_store(root: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(f"{root}/", "/corpus/", recursive=True)
    try:
        outputs = [Output(Folder(place)) for place in ("memory://corpus", root)]
        assert [[step.name for step in document_steps(one)] for one in outputs] == [["clean", "shuffled"]] * 2
        chosen = ROWS[1]
        remote, local = (look_up(one, chosen["id"], chosen["url"]) for one in outputs)
        assert remote == local and remote.text == chosen["text"]
        assert not look_up(outputs[0], chosen["id"], None, seconds=0).complete
        tracer = TextTracer(find_source(root), documents="memory://corpus")
        place = tracer.trace_text(chosen["text"]).spans[0].places[0]
        assert tracer.details(0, place.position, 8).record == remote
    finally:
        store.rm("/corpus", recursive=True)


def assert_report_has(root: Path, names: list[str]) -> None:
    """The report of the tokens has a table of the sets, and that of other tokens none."""
    folder = Folder(root)
    manifest = read_manifest(folder / "tokens")
    assert manifest is not None
    with Inline(workers=1) as runner:
        made = report(folder, [manifest], ReportSettings(), runner=runner)
        page = (folder / made.folder).read_bytes(REPORT).decode()
        assert "Evaluation sets in the training tokens" in page
        assert all(f"<code>{name}</code>" in page for name in names)
        other = report(folder, [manifest.model_copy(update={"content": "0" * 64})], ReportSettings(), runner=runner)
        assert "Evaluation sets in" not in (folder / other.folder).read_bytes(REPORT).decode()


def test_contamination_of_evaluation_sets(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of any shape; 30 of 100 repeat a training document in one of their texts."""
    train = [one["text"] for one in ROWS if one["split"] == "train"]
    lines: list[Any] = [{"question": f"Row {n} xyz?", "choices": ["Quartz jumps.", f"Vex {n}!"]} for n in range(70)]
    lines += [{"id": n, "choices": ["No.", f"Lo: {text}"]} for n, text in enumerate(train[:30])]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "lines.txt").write_text(f"{train[3]}\n\nQuartz jumps over it.\n")
    tracer = TextTracer(find_source(root))
    found = measure(tracer, tmp_path / "mixed.jsonl")
    assert (found.rows, found.contaminated) == (100, 30)
    assert all(example.row > 70 and example.url for example in found.examples)
    assert measure(tracer, tmp_path / "mixed.jsonl", key="question").contaminated == 0
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "mixed.pq")
    assert measure(tracer, tmp_path / "mixed.pq").contaminated == 30
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "mixed.pq").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"cut\.parquet is not a valid Parquet file \(.*\); copy it again"):
        measure(tracer, tmp_path / "cut.parquet")
    assert run_command(app, ["data", "contamination", str(tmp_path / "mixed.jsonl"), str(tmp_path / "lines.txt"),
                             "--data", str(root)]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "| mixed.jsonl | 100 | 30 | 30.0 % |" in shown and "| lines.txt | 2 | 1 | 50.0 % |" in shown
    sets = json.loads((root / "contamination.json").read_text())
    assert_report_has(root, [one["name"] for one in sets])
    assert [(one["name"], one["contaminated"]) for one in sets] == [("lines.txt", 1), ("mixed.jsonl", 30)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["trace", "--data", "ROOT"], "give --sample N or --text TEXT"),
        (["trace", "--text", "x", "--sample", "1", "--data", "ROOT"], "give --sample N or --text TEXT"),
        (["trace", "--text", "x"], "give --run"),
        (["trace", "--text", "x", "--data", "ROOT", "--seed", "1"], "belong to --sample"),
        (["trace", "--text", "x", "--data", "ROOT", "--split", "valid"], "gpt2train data index"),
        (["trace", "--text", "x", "--data", "ROOT/none"], "is no run folder"),
        (["data", "index", "s3://bucket/out"], "local disk"),
        (["data", "index", "ROOT/clean"], "is no run folder"),
        (["data", "contamination", "ROOT", "--data", "ROOT"], "is a folder"),
        (["data", "contamination", "ROOT/none.jsonl", "--data", "ROOT"], "there is no file"),
    ],
)
def test_mistakes_are_one_line(root: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app, [flag.replace("ROOT", str(root)) for flag in flags]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
