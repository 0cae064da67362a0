"""`flows.finetune`: each kind from task file to merged model and scores, and wrong input; and docs/train/t5.md."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from flows.finetune import finetune
from flows.finetune_settings import FinetuneFlowSettings
from flows.pretrain import pretrain
from flows.recipe import PlannedRun
from flows.settings import PipelineSettings, PretrainFlowSettings, read_config, resolve
from gpt2train.cli import app
from gpt2train.command_line import run_command as run_app
from gpt2train.config import CONFIG_FILE, ModelSettings, read_run_config
from gpt2train.convert.detect import find_source
from gpt2train.data.tokenizer import encode_ordinary, load_tokenizer, save_tokenizer, vocab_size
from gpt2train.data.training_data import packed_data
from gpt2train.errors import UserError
from gpt2train.model.causal_lm import Shape, build_model
from gpt2train.model.init import initialise
from gpt2train.monitoring.metrics import read_metrics
from gpt2train.store.folder import Folder
from gpt2train.store.manifest import Manifest
from tasks.finetune.scores import read_scores
from tasks.tokenizer.step import TokenizerSettings, tokenizer
from tests.docs.page_commands import DOCS, commands_of, run_line, small_line
from tests.flows.commands import run as run_command
from tests.flows.small_tokens import prepare_tokens
from tests.gpt2train.convert.model_folders import write_model
from tests.gpt2train.data.test_tokenizer import small_tables
from tests.tasks.corpus import Inline, documents_of, row

TRAIN = '[train]\ndevice = "cpu"\noptimizer.lr = 1e-2\nlogging = {interval = 1, tensorboard = false}\n'
LONG: dict[str, Any] = {"epochs": 4.0, "batch": {"global_batch": 8}, "model": {"dropout": 0.0}}
CLASSIFICATION = f"""kind = "classification"
max_length = 24
[data]
train = "train.tsv"
valid = "valid.tsv"
test = "test.tsv"
text = "one"
pair = "two"
label = "class"
{TRAIN}"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model `lm`, rows of which the last word says the class, prompts, and texts."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "bpe").mkdir()
    save_tokenizer(folder / "bpe", *small_tables())
    shape = Shape(vocab_size(load_tokenizer(folder / "bpe")), 2, 2, 32, 64)
    write_model(folder / "lm", dict(initialise(build_model(shape), 1).named_parameters()), shape, folder / "bpe")
    for part, count in (("train", 64), ("valid", 12), ("test", 9)):
        rows = [f'the "{n}\t{n}" of {("a", "the")[n % 2]}\t{("no", "yes")[n % 2]}\n' for n in range(count)]
        (folder / f"{part}.tsv").write_text("".join(["one\ttwo\tclass\n", *rows]))
    answers = [{"prompt": f"the {number % 5}", "answer": f"{number % 5}{number % 5}"} for number in range(40)]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    (folder / "texts").mkdir()
    for number in range(12):
        (folder / f"texts/{number}.txt").write_text(f"the text of {number} and of the other. " * 9)
    (folder / "classification.toml").write_text(CLASSIFICATION)
    data = '[data]\ntrain = "answers.jsonl"\ntest = "answers.jsonl"\nholdout = 0.3\n'
    (folder / "answers.toml").write_text(f'kind = "answers"\n{data}{TRAIN}')
    data = '[data]\ntrain = "texts"\nholdout = 0.3\n'
    (folder / "text.toml").write_text(f'kind = "text"\nmax_length = 32\n{data}{TRAIN}')
    return folder


def planned(made: Path, output: Path, kind: str, **flags: Any) -> PlannedRun[FinetuneFlowSettings]:
    given = {"model": str(made / "lm"), "task": str(made / f"{kind}.toml"), "output": str(output)}
    return finetune.planned(resolve(FinetuneFlowSettings, flags=given | {"launch": {"processes": 1}} | flags))


def tuned(run: PlannedRun[FinetuneFlowSettings]) -> list[Manifest]:
    run.check()
    with Inline(workers=1) as runner:
        return run.recipe(runner)


def predictions(run: PlannedRun[FinetuneFlowSettings], scores: Manifest) -> list[dict[str, Any]]:
    text = (run.root / scores.folder).read_bytes("test.predictions.jsonl").decode()
    return [json.loads(line) for line in text.splitlines()]


def test_a_classification_is_trained_validated_merged_and_scored(made: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = planned(made, tmp_path / "out", "classification", train=LONG)
    prepared, training, model, scores, page = tuned(run)
    folder = run.root / training.folder
    config = read_run_config(folder.path(CONFIG_FILE))
    assert (config.steps, config.model.labels, config.model.context, config.model.max_positions) == (32, 2, 24, 64)
    assert (config.schedule.kind, config.schedule.warmup_fraction) == ("linear", 0.1)
    assert (config.optimizer.weight_decay, config.optimizer.beta2, config.batch.global_batch) == (0.01, 0.999, 8)
    validated = [row for row in read_metrics(folder.path()) if "valid_loss" in row]
    assert [row["step"] for row in validated] == [8, 16, 24, 32]
    # The model is that of the best epoch: with the highest accuracy, of several the lowest loss.
    best = min(validated, key=lambda row: (-row["valid_accuracy"], row["valid_loss"], row["step"]))
    assert training.outcome.facts["selected_step"] == best["step"]

    found = read_scores(run.root, scores)
    assert found["valid"]["accuracy"] == best["valid_accuracy"] and found["valid"]["f1"] == best["valid_f1"]
    assert found["valid"]["loss"] == pytest.approx(best["valid_loss"], rel=1e-5)
    assert found["valid"]["accuracy"] > found["valid"]["majority"] == 0.5  # the last word says it

    # transformers loads the folder, and predicts the same.
    merged = (run.root / model.folder).path()
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(merged).eval()
    assert type(peer).__name__ == "GPT2ForSequenceClassification" and peer.config.id2label == {0: "no", 1: "yes"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    lines = (made / "test.tsv").read_text().splitlines()[1:]
    texts = ["\n".join(line.split("\t")[:2]) for line in lines]
    tokenizer.pad_token = tokenizer.eos_token
    with torch.no_grad():
        logits = peer(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    rows = predictions(run, scores)
    assert [row["row"] for row in rows] == list(range(1, 10)) and {row["file"] for row in rows} == {"test.tsv"}
    assert [row["label"] for row in rows] == [line.split("\t")[2] for line in lines]
    assert [row["predicted"] for row in rows] == [peer.config.id2label[int(n)] for n in logits.argmax(-1)]
    given = torch.tensor([[row["probabilities"][name] for name in ("no", "yes")] for row in rows])
    torch.testing.assert_close(given, logits.softmax(-1), atol=1e-5, rtol=1e-5)
    card = Path(merged, "README.md").read_text()
    assert "text-classification" in card and "| accuracy (valid, 12 examples) |" in card and "classes | 2" in card

    # Nothing is repeated; another learning rate is another run on the same samples.
    again = planned(made, tmp_path / "out", "classification", train=LONG)
    assert [manifest for _, manifest in again.cached_steps()] == [prepared, training, model, scores, page]
    other = planned(made, tmp_path / "out", "classification", train=LONG | {"optimizer": {"lr": 1e-3}})
    to_run = [name for name, manifest in other.cached_steps() if manifest is None]
    assert to_run == ["train", "merge", "task_scores", "report"]

    # The tuned model is the start of another tuning, and no language model.
    more = planned(made, tmp_path / "more", "classification", model=merged, train={"epochs": 1.0})
    more.check()
    with pytest.raises(UserError, match="is a classifier, which a task of the kind text cannot start from"):
        planned(made, tmp_path / "more", "text", model=merged)
    # With another number of labels than it has classes, named or found in the rows, it is refused before anything runs.
    labels = {"named": ("[data]", '[data]\nlabels = ["no", "yes", "or"]'), "found": ('"class"', '"one"')}
    for name, change in labels.items():
        (made / f"{name}.toml").write_text(CLASSIFICATION.replace(*change))
        with pytest.raises(UserError, match=r"is a classifier of 2 classes, but the task has \d+ labels \(.*; correct"):
            planned(made, tmp_path / "more", name, model=merged).check()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("select", "step"), [("best", 8), ("last", 24)])
def test_the_model_is_that_of_the_best_epoch(made: Path, tmp_path: Path, select: str, step: int) -> None:
    """Validation rows with the opposite labels, so that each epoch makes them worse."""
    rows = (made / "train.tsv").read_text()
    opposite = re.sub(r"(no|yes)$", lambda found: {"no": "yes", "yes": "no"}[found[0]], rows, flags=re.M)
    (made / "opposite.tsv").write_text(opposite)
    (made / "opposite.toml").write_text(CLASSIFICATION.replace("valid.tsv", "opposite.tsv"))
    train = LONG | {"epochs": 3.0, "checkpoints": {"select": select, "keep": 1, "best_metric": "loss"}}
    run = planned(made, tmp_path, "opposite", train=train)
    _, training, _, scores, _ = tuned(run)
    folder = (run.root / training.folder).path()
    losses = {row["step"]: row["valid_loss"] for row in read_metrics(folder) if "valid_loss" in row}
    assert min(losses, key=lambda one: losses[one]) == 8 and len(losses) == 3
    assert read_scores(run.root, scores)["valid"]["loss"] == pytest.approx(losses[step], rel=1e-5)
    assert find_source(Path(folder)).checkpoint.name == f"step-{step:08d}"  # as `gpt2train merge` and the next tuning


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["answers", "text"])
def test_answers_and_texts_are_trained_and_scored(made: Path, tmp_path: Path, kind: str) -> None:
    run = planned(made, tmp_path / "out", kind)
    _, training, model, scores, _ = tuned(run)
    folder = (run.root / training.folder).path()
    losses = [row["loss"] for row in read_metrics(folder)]
    assert losses[-1] < losses[0]
    best = min((row for row in read_metrics(folder) if "valid_loss" in row), key=lambda row: row["valid_loss"])
    found = read_scores(run.root, scores)
    assert found["valid"]["loss"] == pytest.approx(best["valid_loss"], rel=1e-5)
    assert Path((run.root / model.folder).path(), "generation_config.json").exists()
    assert training.outcome.facts["selected_step"] == best["step"]
    if kind == "answers":
        rows = predictions(run, scores)
        assert len(rows) == 40 and rows[0]["answer"] == "00" and 0 <= found["test"]["exact_match"] <= 1
        for kept in ("task", f"{training.folder}/tokenizer", model.folder):  # also where a merge by hand looks
            template = Path(run.root.path(), kept, "chat_template.jinja").read_text()
            assert template.startswith("{% for message in messages %}")
        transformers = pytest.importorskip("transformers")
        peer = transformers.AutoTokenizer.from_pretrained((run.root / model.folder).path())
        said = [{"role": "user", "content": "the 3"}]
        assert peer.apply_chat_template(said, tokenize=False, add_generation_prompt=True) == "the 3\n"


def test_a_preset_has_random_weights_and_takes_a_tokenizer(made: Path, tmp_path: Path) -> None:
    run = planned(made, tmp_path, "classification", model="tiny", tokenizer=str(made / "bpe"))
    train = run.settings.train
    assert (train.model.layers, train.model.hidden, train.checkpoints.init_from) == (4, 192, None)
    assert (train.epochs, train.optimizer.lr, train.batch.global_batch) == (3.0, 1e-2, 32)  # never the preset's
    run.check()
    with pytest.raises(UserError, match="preset tiny has no tokenizer; give --tokenizer DIR"):
        planned(made, tmp_path, "classification", model="tiny")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (3.0, 0.1, 8)),
        ({"train": {"steps": 7}}, (0.0, 0.1, 8)),
        ({"train": {"schedule": {"warmup": 2}}}, (3.0, 0.0, 8)),
        ({"train": {"batch": {"global_batch": 6}}}, (3.0, 0.1, 6)),
        ({"train": {"parallel": {"pp": 2}, "batch": {"global_batch": 8}}, "launch": {"processes": 2}}, (3.0, 0.1, 4)),
        ({"launch": {"processes": 8}}, (3.0, 0.1, 4)),
        ({"train": {"batch": {"micro_batch": 1}}}, (3.0, 0.1, 1)),
    ],
)
def test_defaults_give_way_to_what_is_chosen(made: Path, tmp_path: Path, flags: Any, expected: Any) -> None:
    """The settings of a run resolve to themselves, as a flow does that a command has started."""
    settings = planned(made, tmp_path, "classification", **flags).settings
    train = settings.train
    assert (train.epochs, train.schedule.warmup_fraction, train.batch.micro_batch) == expected
    assert resolve(FinetuneFlowSettings, flags=settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "none"], "model 'none' is neither a folder nor a preset"),
        (["--model", "{}/texts"], "is not a run or checkpoint"),
        (["--model", "{}/bert"], "model_type is 'bert'"),
        (["--tokenizer", "{}/other"], "has 50 tokens, the model"),
        (["--task", "{}/none.toml"], "cannot read the settings file"),
        ({"max_length = 24": "max_length = 65"}, "max_length 65 is above the context of the model, 64"),
        (
            {'text = "one"': 'text = "sentence"'},
            "no column 'sentence'; it has 'one', 'two', 'class'; name it in data.text",
        ),
        ({"train.tsv": "empty.tsv"}, "empty.tsv has no rows that can be read as tsv"),
        ({"train.tsv": "missing.tsv"}, "missing.tsv"),
        ({"optimizer.lr": "optimizer.lrr"}, "/wrong.toml: unknown setting 'train.optimizer.lrr'; did you mean"),
        ({"optimizer.lr = 1e-2": "optimizer.lr = -1"}, "/wrong.toml: train.optimizer.lr: input should be greater than"),
        (["--train.parallel.tp", "3"], "does not divide"),
        (["--train.steps", "0"], "train.steps"),
        (["--output", "s3://bucket/out"], "training writes to a local disk"),
    ],
)
def test_wrong_input_is_refused_in_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str] | dict[str, str], said: str
) -> None:
    for name in ("bert", "other"):
        (made / name).mkdir(exist_ok=True)
    (made / "bert/config.json").write_text('{"model_type": "bert"}')
    letters = {chr(0x100 + number): number for number in range(49)}
    save_tokenizer(made / "other", {**letters, "<|endoftext|>": 49}, [])
    (made / "empty.tsv").write_text("")
    if isinstance(flags, dict):  # another word in the task file
        (made / "wrong.toml").write_text(CLASSIFICATION.replace(*next(iter(flags.items()))))
        flags = ["--task", "{}/wrong.toml"]
    given = {"--model": str(made / "lm"), "--task": str(made / "classification.toml"), "--output": str(tmp_path / "o")}
    given |= {flags[0]: flags[1].replace("{}", str(made))}
    assert run_command("finetune", *[word for pair in given.items() for word in pair]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1
    assert not (tmp_path / "o/task").exists()


def test_the_commands_of_the_page_have_a_plan(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").symlink_to(made / "lm")
    for name in ("train.tsv", "valid.tsv", "test.tsv"):
        Path(name).symlink_to(made / name)
    Path("task.toml").write_text(CLASSIFICATION)
    lines = [line for line in commands_of(DOCS / "train/finetune.md") if line.startswith("python -m flows.finetune ")]
    assert len(lines) == 3
    for line in lines:
        plan = run_line(f"{line} --dry-run")
        assert all(step in plan for step in ("samples", "train", "merge", "task_scores", "report"))
    assert not Path("out").exists()


def test_a_t5_is_refused(made: Path, tmp_path: Path) -> None:
    size = vocab_size(load_tokenizer(made / "bpe"))
    shape = ModelSettings(family="t5", layers=2, heads=2, hidden=32, context=64).shape(size)
    write_model(tmp_path / "t5", dict(initialise(build_model(shape), 1).named_parameters()), shape, made / "bpe")
    with pytest.raises(UserError, match="is a T5, an encoder and a decoder; fine-tuning takes decoders"):
        planned(made, tmp_path, "classification", model=str(tmp_path / "t5"))


PAGE = Path(__file__).parents[2] / "docs/train/t5.md"
TEXTS = Path(__file__).parents[1] / "data/text/speeches_dev.jsonl.gz"
SENTINELS = 12
SMALL: dict[str, Any] = {
    "steps": 2,
    "precision": "fp32",
    "device": "cpu",
    "model": {"hidden": 16, "heads": 2, "context": 32, "options": {"decoder_context": 16, "head_dim": 4, "inner": 24}},
    "objective": {"options": {"sentinel_count": SENTINELS}},
    "batch": {"micro_batch": 1, "global_batch": 2, "gradient_accumulation_steps": 0},
    "parallel": {"tp": 1},
    "schedule": {"warmup": 1, "warmup_fraction": 0.0, "decay_steps": 2},
    "logging": {"tensorboard": False},
}


def commands() -> list[str]:
    return re.findall(r"^    (\S.*)$", PAGE.read_text(encoding="utf-8"), re.M)


def test_the_settings_of_the_page_are_valid(tmp_path: Path) -> None:
    [shown] = re.findall(r"```toml.*?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "t5.toml").write_text(shown)
    settings = resolve(PipelineSettings, str(tmp_path / "t5.toml"), {"documents": ["texts.jsonl"]})
    assert settings.train.model.options["encoder_layers"] == 12 and settings.tokenizer.sentinels == 100
    assert settings.train.sample_length == 1137
    assert resolve(PretrainFlowSettings, str(tmp_path / "t5.toml")).train.model == settings.train.model
    assert "tokenizer" in read_config(str(tmp_path / "t5.toml"))


def test_a_trained_tokenizer_has_sentinels_at_its_end(tmp_path: Path) -> None:
    rows = [row("one two three " * 30, split="train")]
    with Inline(workers=1) as runner:
        documents = documents_of(Folder(tmp_path), rows, per_shard=1)
        settings = TokenizerSettings(vocab_size=290, sentinels=SENTINELS, min_frequency=1)
        tokenizer(Folder(tmp_path), documents, settings, runner)
    made = load_tokenizer(tmp_path / "tokenizer")
    size = vocab_size(made)
    assert size <= 290
    assert [made.token_to_id(f"<extra_id_{n}>") for n in range(SENTINELS)] == [size - 1 - n for n in range(SENTINELS)]
    assert made.token_to_id("<pad>") == size - SENTINELS - 1
    assert len(encode_ordinary(made, ["<extra_id_0>"])[0]) > 1  # a text is never parsed for them
    for wrong in ({"name": "folder", "folder": "x"}, {"algorithm": "sentencepiece_bpe"}):
        with pytest.raises(ValueError, match="sentinels can be added to gpt2 and to byte_bpe"):
            TokenizerSettings.model_validate({"sentinels": 5, **wrong})
    with pytest.raises(ValueError, match="give at least 358"):
        TokenizerSettings(vocab_size=300, sentinels=100)


@pytest.mark.slow
def test_the_preset_trains_merges_and_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = prepare_tokens(tmp_path / "out", sentinels=SENTINELS)
    flags = {"output": str(root), "preset": "t5-cpm", "train": SMALL, "launch": {"processes": 1}}
    planned = pretrain.planned(resolve(PretrainFlowSettings, flags=flags))
    planned.check()
    with Inline(workers=1) as runner:
        [training] = planned.recipe(runner)
    run = root / training.folder
    rows = read_metrics(run)
    assert len(rows) == 2 and rows[-1]["valid_loss"] > 0
    config = read_run_config(run / CONFIG_FILE)
    assert packed_data(config, "train").context == config.sample_length == 34
    merge, generate = commands()[-2:]
    run_line(merge.replace("out/runs/RUN", str(run)).replace("--output model", f"--output {tmp_path}/model"))
    words = generate.replace("--model model", f"--model {tmp_path}/model")
    answer = json.loads(run_line(f"{words} --max-new-tokens 5 --json"))
    assert 1 <= len(answer["tokens"]) <= 5
    capsys.readouterr()
    lambada = tmp_path / "lambada.jsonl"
    lambada.write_text('{"text": "one two three"}\n')
    for refused in (["evaluate", "lambada", "--data", str(lambada)], ["serve"]):
        assert run_app(app, [*refused, "--model", f"{tmp_path}/model", "--device", "cpu"]) == 2
        err = capsys.readouterr().err
        assert "has an encoder and a decoder (t5)" in err and err.count("\n") == 1


@pytest.mark.exhaustive
def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From texts to a trained model, with small sizes in a file of their own."""
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_bytes(gzip.decompress(TEXTS.read_bytes()))
    dataprep, training = (line for line in commands() if line.startswith("python -m flows") and "cpm" in line)
    Path("small.toml").write_text(tomli_w.dumps({"train": SMALL | {"parallel": {"tp": 2}}}))
    run_line(small_line(dataprep, "--tokenizer.vocab-size 300 --tokenizer.sentinels 12"))
    run_line(small_line(training, "--launch.processes 2 --config small.toml"))
    [run] = Path("cpm/runs").glob("t5-cpm-*")
    assert len(read_metrics(run)) == 2
