"""The steps merge and evaluate on a trained run."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt2train.convert.merge import merge as merge_checkpoint
from gpt2train.convert.settings import MergeSettings
from gpt2train.errors import RunError, UserError
from gpt2train.inference.settings import SamplingSettings
from gpt2train.store.manifest import Folder, Manifest, Outcome, read_manifest
from tasks.core.runner import Runner
from tasks.core.shards import CLEAN, write_rows
from tasks.core.step import Step
from tasks.evaluate.step import EvaluateSettings, evaluate, held_out_texts, truncate
from tasks.merge.step import checkpoint_name, merge, write_card
from tasks.report.step import REPORT, ReportSettings, report
from tests.tasks.corpus import Inline
from tests.trained_run import TrainedRun

LICENSE = (Path(__file__).parents[3] / "LICENSE").read_text()
SETTINGS = EvaluateSettings(max_documents=3, prompts=("The", ""), sampling=SamplingSettings(max_new_tokens=5))


class Upstream:
    """Outputs of the earlier steps: a training run, its tokenizer, held-out documents, a cloze set."""

    def __init__(self, trained: TrainedRun) -> None:
        root = trained.root
        self.root = Folder(root)
        self.tokenizer = self.step("tokenizer", "tokenizer", ["vocab.json", "merges.txt", "tokenizer.json"])
        names = [name for name in Folder(trained.run).files() if name.startswith("checkpoints/")]
        self.training = self.step("train", "runs/small", ["config.toml", *names])
        paragraphs = [text for text in LICENSE.split("\n\n") if len(text.split()) > 9]
        rows = [
            {"id": hashlib.sha256(text.encode()).hexdigest(), "url": "u", "text": text, "split": split}
            for text, split in zip(paragraphs, ["test", "train", "valid", "test"] * len(paragraphs), strict=False)
        ]
        for part, some in enumerate((rows[::2], rows[1::2])):
            write_rows(self.root / "documents", f"part-{part:05d}.parquet", some, CLEAN)
        self.rows = rows
        self.documents = self.step("shuffle", "documents", ["part-00000.parquet", "part-00001.parquet"])
        self.cloze = root / "cloze.jsonl"
        lines = [json.dumps({"text": " ".join(text.split()[:9])}) for text in paragraphs]
        self.cloze.write_text("\n".join(lines))
        self.passages = len(lines)

    def step(self, name: str, folder: str, files: list[str]) -> Manifest:
        step = Step(self.root, name, version=1, parameters={}, inputs={}, folder=folder, shared=True)
        outputs = tuple(step.folder.record(file) for file in files)
        return step.commit(Outcome(outputs=outputs))


@pytest.fixture(scope="module")
def upstream(trained_run: TrainedRun) -> Upstream:
    return Upstream(trained_run)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Inline(workers=1) as runner:
        yield runner


@pytest.fixture(scope="module")
def model(upstream: Upstream, runner: Runner) -> Manifest:
    return merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), runner)


@pytest.fixture(scope="module")
def scores(upstream: Upstream, model: Manifest, runner: Runner) -> Manifest:
    return evaluate(upstream.root, model, str(upstream.cloze), upstream.documents, SETTINGS, runner)


def test_merge_writes_a_model_folder(upstream: Upstream, model: Manifest, runner: Runner) -> None:
    assert model.folder == "runs/small/model"
    names = [record.name for record in model.outputs]
    assert {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"} < set(names)
    folder = upstream.root / model.folder
    assert folder.files() == sorted(["README.md", *names])
    assert not [path for path in Path(folder.path()).iterdir() if path.is_dir()]
    records = upstream.root / "runs/small/merge"
    assert records.files() == ["_card.json", "_manifest.json"] and read_manifest(records) == model
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder.path()).config.n_layer == 1
    skipped = Runner(workers=1)
    assert merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), skipped) == model
    assert skipped.skipped == {"merge"}


def test_a_model_folder_of_the_previous_format_is_merged_again(upstream: Upstream, model: Manifest) -> None:
    """Releases before kept `_manifest.json` and `_batches/` in the folder that people upload."""
    folder, records = upstream.root / model.folder, upstream.root / "runs/small/merge"
    before = {name: folder.read_bytes(name) for name in folder.files()}
    old = json.loads(records.read_bytes("_manifest.json")) | {"version": 1, "fingerprint": "0" * 32}
    records.remove("_manifest.json")
    folder.write_bytes("_manifest.json", json.dumps(old).encode())
    folder.write_bytes("_batches/part-00000.json", json.dumps({"fingerprint": "0" * 32, "outcome": {}}).encode())
    with Inline() as runner:
        assert merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), runner) == model
        assert not runner.skipped
    assert {name: folder.read_bytes(name) for name in folder.files()} == before
    assert not [path for path in Path(folder.path()).iterdir() if path.name.startswith(("_", "."))]


def test_a_killed_or_damaged_merge_is_run_again(upstream: Upstream, model: Manifest) -> None:
    folder, records = upstream.root / model.folder, upstream.root / "runs/small/merge"
    folder.remove("config.json")
    with Inline() as runner:
        assert merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), runner) == model
        assert not runner.skipped and folder.size("config.json")
    # Killed between the batch and the manifest: the batch is not repeated.
    outcome = {"fingerprint": model.fingerprint, "outcome": model.outcome.model_dump(mode="json")}
    records.write_bytes("_batches/part-00000.json", json.dumps(outcome).encode())
    records.remove("_manifest.json")
    written = Path(folder.path("model.safetensors")).stat().st_mtime_ns
    with Inline() as runner:
        assert merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), runner) == model
    assert Path(folder.path("model.safetensors")).stat().st_mtime_ns == written
    assert records.files() == ["_card.json", "_manifest.json"]


def test_evaluate_writes_three_files(upstream: Upstream, model: Manifest, scores: Manifest) -> None:
    assert scores.folder == "runs/small/eval"
    assert [record.name for record in scores.outputs] == ["lambada.json", "perplexity.json", "samples.json"]
    folder = upstream.root / scores.folder
    lambada, perplexity, samples = (json.loads(folder.read_bytes(record.name)) for record in scores.outputs)
    assert lambada["passages"] == upstream.passages == scores.outcome.facts["passages"]
    assert lambada["data"] == "cloze.jsonl"
    assert lambada["notes"]
    assert perplexity["documents"] == 3 == scores.outcome.facts["held_out_documents"]
    assert perplexity["word_perplexity"] > perplexity["token_perplexity"] > 1
    assert [sample["prompt"] for sample in samples["samples"]] == ["The", ""]
    again = Runner(workers=1)
    assert evaluate(upstream.root, model, str(upstream.cloze), upstream.documents, SETTINGS, again) == scores
    assert again.skipped == {"evaluate"}


def unsealed(card: str) -> str:
    text, _, seal = card.rpartition("\n<!-- ")
    assert seal
    return text


def test_the_model_card_gets_the_scores(upstream: Upstream, model: Manifest, scores: Manifest, tmp_path: Path) -> None:
    """The merge writes it without them; the flow, and `gpt2train merge` of the evaluated run, with them."""
    card_file = Path((upstream.root / model.folder).path("README.md"))
    ours = card_file.read_text()
    assert "## Evaluation" not in ours and "| steps | 2 |" in ours and "license: unknown" in ours
    run = Path((upstream.root / "runs/small").path())
    merge_checkpoint(run, tmp_path / "m", Path(upstream.root.path("tokenizer")))
    card = (tmp_path / "m/README.md").read_text()
    assert f"| last word, accuracy (cloze set (own held-out text), {upstream.passages:,} examples) |" in card
    assert "lambada" not in card.lower()
    assert "| word perplexity (held-out documents, 3 examples) |" in card
    assert "| bits per byte (held-out documents, 3 examples) |" in card
    assert "## Cost" not in card, "what only the manifests of a flow know is left to the flow"
    # Scores of other weights are not those of this model.
    merge_checkpoint(run, tmp_path / "half", Path(upstream.root.path("tokenizer")), "bfloat16", "mit")
    half = (tmp_path / "half/README.md").read_text()
    assert "## Evaluation" not in half and "license: mit" in half and "licence `mit`" in half

    write_card(upstream.root, upstream.training, MergeSettings(), scores)
    before, cost, after = re.split(r"(?s)(## Cost.*?)(?=## Evaluation)", card_file.read_text())
    assert unsealed(before + after) == unsealed(card)
    assert "| devices | 1 x cpu |" in cost and "hours of training steps |" in cost
    card = card_file.read_text()
    card_file.unlink()
    write_card(upstream.root, upstream.training, MergeSettings(license="mit"), scores)
    assert unsealed(card_file.read_text()) == unsealed(card).replace("license: unknown", "license: mit").replace(
        "The licence of the weights is not stated; ask the publisher before you use them.",
        "The weights are published under the licence `mit`.",
    )


def test_an_edited_model_card_is_kept(upstream: Upstream, model: Manifest, scores: Manifest) -> None:
    folder = upstream.root / model.folder
    folder.write_bytes("README.md", b"# My model")
    folder.remove("config.json")
    with Inline() as runner:
        assert merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), runner) == model
        assert not runner.skipped and folder.size("config.json")
    write_card(upstream.root, upstream.training, MergeSettings(license="mit"), scores)
    assert folder.read_bytes("README.md") == b"# My model"
    again = Runner(workers=1)
    assert merge(upstream.root, upstream.training, upstream.tokenizer, MergeSettings(), again) == model
    assert again.skipped == {"merge"}, "a changed card is no reason to merge again"


@pytest.mark.slow
def test_another_cloze_set_is_scored_and_one_worker_gives_the_same_bytes(
    upstream: Upstream, model: Manifest, scores: Manifest, tmp_path: Path
) -> None:
    folder = upstream.root / scores.folder
    before = {record.name: folder.read_bytes(record.name) for record in scores.outputs}
    other = tmp_path / "cloze.jsonl"
    other.write_text(upstream.cloze.read_text() + '\n{"text": "one more passage"}')
    with Runner(workers=1) as one:
        changed = evaluate(upstream.root, model, str(other), upstream.documents, SETTINGS, one)
        assert changed.outcome.facts["passages"] == upstream.passages + 1
        assert changed.identity != scores.identity
        assert evaluate(upstream.root, model, str(upstream.cloze), upstream.documents, SETTINGS, one) == scores
    assert {record.name: folder.read_bytes(record.name) for record in scores.outputs} == before


def test_wikitext_is_scored_if_given(upstream: Upstream, model: Manifest, scores: Manifest, tmp_path: Path) -> None:
    file, (lambada, documents) = tmp_path / "wiki.test.tokens", (str(upstream.cloze), upstream.documents)
    file.write_text(" = Valkyria = \n A game , in the third @-@ person . \n" * 5)
    with Inline() as runner:
        more = evaluate(upstream.root, model, lambada, documents, SETTINGS, runner, wikitext=str(file))
        assert [record.name for record in more.outputs][-1] == "wikitext.json"
        found = json.loads((upstream.root / more.folder).read_bytes("wikitext.json"))
        assert (found["data"], found["words"], found["stride"]) == (file.name, 69, 32)
        assert found["adjusted_perplexity"] > found["token_perplexity"] > 1
        assert more.outcome.facts["wikitext_tokens"] == found["tokens"]
        file.write_bytes(b"\xff")
        with pytest.raises(UserError, match="is not UTF-8"):
            evaluate(upstream.root, model, lambada, documents, SETTINGS, runner, wikitext=str(file))
        assert evaluate(upstream.root, model, lambada, documents, SETTINGS, runner) == scores
    assert "wikitext.json" not in (upstream.root / scores.folder).files()


def test_a_bad_cloze_set_keeps_the_scores(
    upstream: Upstream, model: Manifest, scores: Manifest, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a b"}\n{}')
    with pytest.raises(UserError, match=r"bad\.jsonl line 2"):
        evaluate(upstream.root, model, str(bad), upstream.documents, SETTINGS, Runner(workers=1))
    made = {"version": scores.version, "parameters": SETTINGS, "inputs": scores.inputs, "folder": scores.folder}
    assert Step(upstream.root, "evaluate", **made, packages=tuple(scores.versions)).finished()


def test_held_out_documents_are_the_smallest_ids_of_the_test_split(upstream: Upstream) -> None:
    test = sorted((row["id"], row["text"]) for row in upstream.rows if row["split"] == "test")
    assert len(test) > 3
    assert held_out_texts(upstream.root, upstream.documents, SETTINGS) == [text for _, text in test[:3]]
    short = SETTINGS.model_copy(update={"max_characters": 100})
    assert all(len(text) <= 100 for text in held_out_texts(upstream.root, upstream.documents, short))
    cut = {"abc def": "abc def", "abc def ghi": "abc def", "abcdefghijk": "abcdefgh", "abcdefg hij": "abcdefg"}
    assert {text: truncate(text, 8) for text in cut} == cut  # at whole words


def test_without_any_evaluation_data_only_samples_are_written(
    upstream: Upstream, model: Manifest, scores: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"id": "1", "url": "u", "text": "t", "split": "train"}]
    write_rows(upstream.root / "unsplit", "p.parquet", rows, CLEAN)
    unsplit = upstream.step("shuffle", "unsplit", ["p.parquet"])
    with Inline() as one:
        bare = evaluate(upstream.root, model, None, unsplit, SETTINGS, one)
        assert [record.name for record in bare.outputs] == ["samples.json"]
        assert bare.outcome.facts["held_out_documents"] == 0
        assert "no document of unsplit is in the split 'test'" in caplog.text
        page = (upstream.root / report(upstream.root, [bare], ReportSettings(), runner=one).folder).read_bytes(REPORT)
        assert b"No cloze score" in page and b"the test split is empty" in page
        assert evaluate(upstream.root, model, str(upstream.cloze), upstream.documents, SETTINGS, one) == scores


def test_the_checkpoint_comes_from_the_manifest(upstream: Upstream) -> None:
    assert checkpoint_name(upstream.training) == "checkpoints/step-00000002"
    with pytest.raises(RunError, match="names 0 checkpoints"):
        checkpoint_name(upstream.tokenizer)
