"""`flows.pretrain`: on tokens of `gpt2train data tokenize`, with merge and scores after it, ended by a callback."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.evaluate import evaluate
from flows.orchestration.flow import split_parameters
from flows.pipeline import pipeline
from flows.pretrain import pretrain
from flows.recipe import PlannedRun
from flows.settings import EvaluateFlowSettings, PipelineSettings, PretrainFlowSettings, resolve
from flows.ui.result import result
from gpt2train.cli import app, run_command
from gpt2train.config import CONFIG_FILE, read_run_config, to_toml
from gpt2train.config.callbacks import CALLBACKS
from gpt2train.data.tokenizer import end_of_text_id, load_tokenizer, save_tokenizer, tokenizer_hash
from gpt2train.errors import UserError
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.settings import build, read_toml
from gpt2train.store.manifest import Manifest
from tasks.ready_tokens.tokens import open_ready_tokens
from tests.flows.commands import run
from tests.flows.small_tokens import TRAIN as SMALL
from tests.flows.small_tokens import prepare_scored_data
from tests.gpt2train import jobs
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.tasks.corpus import Inline
from tests.tasks.plugin_page import files_of, install

TRAIN: dict[str, Any] = {
    **SMALL,
    "steps": 4,
    "model": {**SMALL["model"], "context": 16},
    "validation": {"interval": 2, "samples": 4},
    "checkpoints": {"interval": 2},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `a` and `b`, token files of two texts, and their tokenizer."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "bpe").mkdir()
    save_tokenizer(folder / "bpe", *small_tables())
    for name, documents in (("a", 60), ("b", 40)):
        rows = [{"text": f"Document {number} of {name}: {'the ' * (number % 9 + 3)}."} for number in range(documents)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["data", "tokenize", f"{folder}/{name}.jsonl", "--output", f"{folder}/tokens/{name}"]
        assert run_command(app, [*command, "--tokenizer", f"{folder}/bpe", "--append-eod"]) == 0
    return folder


def planned(output: Path, **flags: Any) -> PlannedRun[PretrainFlowSettings]:
    given = {"output": str(output), "train": TRAIN, "launch": {"processes": 1}, **flags}
    return pretrain.planned(resolve(PretrainFlowSettings, flags=given))


def trained(run: PlannedRun[PretrainFlowSettings]) -> list[Manifest]:
    run.check()
    with Inline(workers=1) as runner:
        return run.recipe(runner)


def losses(folder: Path | str, key: str = "loss") -> list[float]:
    return [row[key] for row in read_metrics(folder) if key in row]


@pytest.mark.slow
def test_tokens_made_elsewhere_train_validate_and_merge(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned_run = planned(tmp_path / "out", tokens=str(made / "tokens/a"), split="7,2,1")
    counted, training = trained(planned_run)
    facts = counted.outcome.facts
    assert [facts[f"{part}_documents"] for part in ("train", "valid", "test")] == [42, 12, 6]
    folder = tmp_path / "out" / training.folder
    config = read_run_config(folder / CONFIG_FILE)
    assert (config.data.train, config.data.split, config.vocab) == (str(made / "tokens/a"), "7,2,1", 262)
    assert config.tokenizer_hash == tokenizer_hash(folder / "tokenizer")
    assert len(losses(folder)) == 4 and len(losses(folder, "valid_loss")) == 2

    page = result(planned_run.root, [counted, training])
    assert "| train | 42 |" in page and "| test | 6 |" in page and f"gpt2train merge {folder}" in page
    assert run_command(app, ["merge", str(folder), "--output", str(tmp_path / "model")]) == 0
    assert (tmp_path / "model/tokenizer.json").exists()

    # Nothing is repeated.
    again = planned(tmp_path / "out", tokens=str(made / "tokens/a"), split="7,2,1")
    assert again.cached_steps() == [("ready_tokens", counted), ("train", training)]

    # The flow of the scores needs documents.
    assert run("evaluate", "--run", str(folder)) == 2
    assert "no documents to score; give --lambada FILE, or run gpt2train merge" in capsys.readouterr().err

    # A training without the flow, with its settings written by hand, has the same losses.
    own = {"data": {"train": str(made / "tokens/a"), "split": "7,2,1"}, "output": str(tmp_path / "own")}
    direct = build(type(config), config.model_dump(), {"data": {"valid": None}}, own)
    (tmp_path / "run.toml").write_text(to_toml(direct))
    code, _, error = jobs.finish(jobs.start_alone(str(tmp_path / "run.toml")))
    assert code == 0, error
    for key in ("loss", "valid_loss"):
        assert losses(tmp_path / "own", key) == losses(folder, key)


@pytest.mark.exhaustive
def test_corpora_are_blended_and_a_vocabulary_alone_suffices(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.bin", "a.idx", "b.bin", "b.idx"):
        (tmp_path / name).hardlink_to(made / "tokens" / name)
    tokens = f"0.3 {tmp_path}/a 0.7 {tmp_path}/b"
    _, training = trained(planned(tmp_path / "out", tokens=tokens, split="949,50,1", vocab=300))
    folder = tmp_path / "out" / training.folder
    config = read_run_config(folder / CONFIG_FILE)
    corpora = [(corpus.prefix, corpus.weight) for corpus in config.data.corpora]
    assert corpora == [(str(tmp_path / "a"), 0.3), (str(tmp_path / "b"), 0.7)]
    assert config.vocab == 300 and config.tokenizer_hash is None
    assert not (folder / "tokenizer").exists()
    assert run_command(app, ["merge", str(folder), "--output", str(tmp_path / "model")]) == 2
    assert "give its folder: --tokenizer DIR" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_validation_tokens_of_their_own_take_the_place_of_a_split(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"tokens": str(made / "tokens/a"), "valid": str(made / "tokens/b")}
    planned_run = planned(tmp_path / "out", **flags)
    counted, training = trained(planned_run)
    facts = counted.outcome.facts
    assert [facts[f"{part}_documents"] for part in ("train", "valid", "test")] == [60, 40, 0]
    folder = tmp_path / "out" / training.folder
    config = read_run_config(folder / CONFIG_FILE)
    assert (config.data.valid, config.data.split) == (flags["valid"], None)
    assert len(losses(folder)) == 4 and len(losses(folder, "valid_loss")) == 2
    # Other validation tokens are another run, and so is none; the same ones are the same run.
    assert planned(tmp_path / "out", **flags).cached_steps()[-1] == ("train", training)
    other = planned(tmp_path / "out", tokens=flags["tokens"], valid=flags["tokens"])
    assert [manifest for _, manifest in other.cached_steps()] == [None, None]
    # Of the same losses: the training tokens are all of `a` in each.
    _, unvalidated = trained(planned(tmp_path / "plain", tokens=flags["tokens"]))
    assert losses(tmp_path / "plain" / unvalidated.folder) == losses(folder)

    short = ["--tokens", flags["tokens"], "--valid", flags["valid"], "--train.model.context", "1024", "--dry-run"]
    assert run("pretrain", *short, "--output", str(tmp_path / "out")) == 0
    plan = capsys.readouterr().out
    assert f"validation {flags['valid']}; tokenizer" in plan and "valid 40 documents" in plan


def test_the_plan_shows_files_split_and_missing_validation(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--output", str(tmp_path / "out"), "--train.model.context", "16", "--dry-run"]
    assert run("pretrain", "--tokens", str(made / "tokens/a"), "--split", "7,2,1", *flags) == 0
    plan = capsys.readouterr().out
    files = f"files       {made}/tokens/a; tokenizer {made}/tokens/tokenizer"
    counts = ("train 42 documents, ", "; valid 12 documents, ", "; test 6 documents, ", "vocabulary 262")
    for part in ("ready_tokens  to run", files, *counts, "missing     nothing"):
        assert part in plan
    assert run("pretrain", "--tokens", str(made / "tokens/a"), *flags) == 0
    assert "no validation: the valid split holds 0 tokens" in (plan := capsys.readouterr().out)
    assert "as --split 949,50,1" in plan
    (tmp_path / "lambada.jsonl").write_text('{"text": "a b c"}\n')
    given = planned(tmp_path / "out", tokens=str(made / "tokens/a"), lambada=str(tmp_path / "lambada.jsonl"))
    assert [name for name, _ in given.cached_steps()] == ["ready_tokens", "train"]
    assert "--score is not given, so lambada is not used" in given.shown_plan()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tokens", "{}/tokens/a", "--data", "out"], "--tokens and --data both name the tokens"),
        (["--split", "949,50,1"], "--split is for token files made elsewhere; give --tokens PREFIX"),
        (["--vocab", "300"], "--vocab is for token files made elsewhere"),
        (["--valid", "{}/tokens/b"], "--valid is for token files made elsewhere; give --tokens PREFIX"),
        (["--tokens", "{}/tokens/a", "--valid", "{}/tokens/b", "--split", "9,1"], "--valid and --split both name"),
        (["--tokens", "{}/tokens/a", "--valid", "{}/tokens/none"], "none.idx is missing; a token dataset is a pair"),
        (["--tokens", "{}/tokens/a", "--valid", "{}/tokens/a,{}/tokens/b"], "names 2 corpora; validation takes one"),
        (["--tokens", "{}/tokens/a", "--score", "--lambada", "{}/none.jsonl"], "none.jsonl"),
        (["--tokens", "{}/tokens/a", "--split", "0,1"], "this split leaves nothing for training"),
        (["--tokens", "{}/tokens/a", "--split", "1,999"], "the split leaves 0 documents of"),
        (["--tokens", "{}/tokens/a", "--split", "a,b"], "the weights of train, valid and test, as '949,50,1'"),
        (["--tokens", "{}/tokens/none"], "none.idx is missing; a token dataset is a pair"),
        (["--tokens", "{}/damaged"], "damaged.idx is truncated or damaged"),
        (["--tokens", "{}/bare"], "bare has no tokenizer/ beside it; give --tokenizer DIR"),
        (["--tokens", "0.3 {}/tokens/a 0.7"], "is not pairs of weight and prefix"),
        (["--tokens", "s3://bucket/a"], "is missing; a token dataset is a pair"),
    ],
)
def test_wrong_tokens_are_refused_in_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    for name in ("bare", "damaged"):
        for suffix in ("bin", "idx"):
            (made / f"{name}.{suffix}").write_bytes((made / f"tokens/a.{suffix}").read_bytes())
    (made / "damaged.idx").write_bytes((made / "damaged.idx").read_bytes()[:-9])
    for more in ([], ["--dry-run"]):
        given = [flag.replace("{}", str(made)) for flag in flags]
        assert run("pretrain", *given, "--output", str(tmp_path / "out"), *more) == 2
        captured = capsys.readouterr()
        assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert not (tmp_path / "out").exists()


def test_a_raw_file_has_the_documents_of_its_pair(made: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.bin"
    raw.write_bytes((made / "tokens/a.bin").read_bytes())
    tokenizer, split = f"{made}/tokens/tokenizer", "8,1,1"
    pair = open_ready_tokens(f"{made}/tokens/a.idx", split, None, None)  # a file of the pair stands for it
    found = open_ready_tokens(str(raw), split, tokenizer, None)
    assert (found.identities, found.facts, found.vocab) == (pair.identities, pair.facts, pair.vocab)
    assert pair.corpora[0].prefix == f"{made}/tokens/a"
    assert found.corpora[0].prefix == f"{raw}#{end_of_text_id(load_tokenizer(tokenizer))}"


def test_missing_sentinels_are_refused_before_anything_starts(made: Path, tmp_path: Path) -> None:
    objective = {"name": "span_corruption", "options": {"sentinel_count": 3}}
    model = {"family": "t5", "options": {"decoder_context": 16, "encoder_layers": 1}, "layers": 2}
    train = TRAIN | {"objective": objective, "model": TRAIN["model"] | model}
    with pytest.raises(UserError, match=r"tokenizer has no token <extra_id_0> to stand for a span"):
        planned(tmp_path, tokens=f"{made}/tokens/a", train=train).check()
    flags = {"output": str(tmp_path), "preset": "tiny", "train": train, "tokenizer": {"name": "train", "sentinels": 2}}
    with pytest.raises(UserError, match=r"tokenizer\.sentinels is 2, but the objective needs 3"):
        pipeline.planned(resolve(PipelineSettings, flags=flags)).check_training()


def test_a_settings_file_of_all_flows_may_have_the_table_of_the_tokenizer(tmp_path: Path) -> None:
    """The key is a path in this flow, and a table in the data flow."""
    (tmp_path / "all.toml").write_text('output = "out"\n[tokenizer]\nname = "gpt2"\n')
    assert resolve(PretrainFlowSettings, str(tmp_path / "all.toml")).tokenizer is None
    (tmp_path / "own.toml").write_text('tokens = "a"\nsplit = "949,50,1"\ntokenizer = "bpe"\n')
    assert resolve(PretrainFlowSettings, str(tmp_path / "own.toml")).tokenizer == "bpe"


def test_a_deployment_takes_them_as_parameters() -> None:
    """The command line of Prefect sends a number alone as a number."""
    parameters = {"config": "pretrain/tiny", "tokens": "a", "split": 100}
    settings = resolve(PretrainFlowSettings, *split_parameters(PretrainFlowSettings, parameters))
    assert (settings.tokens, settings.split, settings.output) == ("a", "100", "out/demo")
    schema = pretrain.parameters.model_dump()["properties"]
    assert {"tokens", "split", "tokenizer", "vocab"} <= schema.keys() and "949,50,1" in schema["split"]["description"]


SCORES = {"evaluate": {"prompts": ["The"], "sampling": {"max_new_tokens": 4}}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_scored_data(tmp_path_factory.mktemp("scores") / "data")


def scored(output: Path, **flags: Any) -> PlannedRun[PretrainFlowSettings]:
    return planned(output, **{"train": {**SMALL, "device": "cpu"}, "score": True, **SCORES, **flags})


@pytest.mark.exhaustive
def test_a_pretraining_ends_with_model_and_scores(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    planned_run = scored(tmp_path / "out", data=str(data))
    assert [name for name, _ in planned_run.cached_steps()] == ["train", "merge", "evaluate"]
    assert f"scores      cloze set {data}/evalset/cloze.jsonl, perplexity of held-out" in planned_run.shown_plan()
    training, model, scores = trained(planned_run)
    assert [record.name for record in scores.outputs] == ["lambada.json", "perplexity.json", "samples.json"]
    assert {"model.safetensors", "tokenizer.json"} <= {record.name for record in model.outputs}
    page = result(planned_run.root, [training, model, scores])
    assert "| whole word, accuracy |" in page and f"gpt2train serve --model {tmp_path}/out/{model.folder}" in page
    card = (tmp_path / "out" / model.folder / "README.md").read_text()
    assert "last word, accuracy (" in card and "| shuffle |" in card
    assert not [record for record in caplog.records if record.levelname == "WARNING" and "score" in record.message]

    # The flow of the scores finds the same data, and has nothing left to do.
    settings = resolve(EvaluateFlowSettings, flags={"run": str(tmp_path / "out" / training.folder), **SCORES})
    assert evaluate.planned(settings).cached_steps() == [("merge", model), ("evaluate", scores)]

    # Without documents and cloze set, the training of the same tokens is scored as far as it can be.
    bare = tmp_path / "bare"
    shutil.copytree(data, bare, ignore=shutil.ignore_patterns("evalset", "shuffled"))
    *_, scores = trained(scored(tmp_path / "out", data=str(bare)))
    assert [record.name for record in scores.outputs] == ["samples.json"]
    assert f"no cloze score: {bare} holds no cloze set of its own; give --lambada FILE" in caplog.text


def test_wrong_data_of_the_scores_end_the_run_before_the_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jsonl").write_text("no JSON\n")
    for flags, message in (
        (["--lambada", f"{tmp_path}/bad.jsonl"], "bad.jsonl"),
        (["--lambada", f"{tmp_path}/none.jsonl"], "none.jsonl"),
        (["--wikitext", f"{tmp_path}/none.tokens"], "none.tokens"),
        (["--tasks.names", "hellaswag"], "tasks.names needs tasks.data"),
        (["--tasks.names", "helaswag", "--tasks.data", str(tmp_path)], "there is no task 'helaswag'"),
        (["--tasks.names", "hellaswag", "--tasks.data", str(tmp_path)], "has no **/hellaswag_val.jsonl"),
    ):
        assert run("pretrain", "--data", str(data), "--output", str(tmp_path / "out"), "--score", *flags) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    with pytest.raises(UserError, match="lambada has a setting of its own"):
        scored(tmp_path / "out", evals={"lambada": "x"})
    assert not (tmp_path / "out/runs").exists()


def test_the_settings_of_a_deployment_serve_the_pipeline_too() -> None:
    assert resolve(PretrainFlowSettings, "pretrain/345m").score
    assert not resolve(PretrainFlowSettings, "pretrain/345m", {"score": False}).score
    assert not resolve(PretrainFlowSettings).score
    assert resolve(PipelineSettings, "pretrain/345m").preset == "345m"
    assert resolve(EvaluateFlowSettings, "pretrain/345m", {"run": "out/runs/x"}).run == "out/runs/x"


def test_the_options_of_a_callback_are_settings_of_a_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("add-a-callback.md", tmp_path)
    monkeypatch.setattr(CALLBACKS, "_entries", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "early_stop", raising=False)
    importlib.import_module("early_stop")
    (tmp_path / "run.toml").write_text(files_of("add-a-callback.md")["options.toml"])
    config = read_toml(tmp_path / "run.toml")["train"]["callbacks"]
    settings = resolve(PretrainFlowSettings, str(tmp_path / "run.toml"))
    assert settings.train.callbacks == config == {"early_stop": {"patience": 5}}
    with pytest.raises(UserError, match=r"callback early_stop: unknown setting 'patiense'; did you mean 'patience'\?$"):
        resolve(PretrainFlowSettings, flags={"train": {"callbacks": {"early_stop": {"patiense": 1}}}})
