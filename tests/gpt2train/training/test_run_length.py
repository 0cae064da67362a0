"""Length of a run by epochs, and a position embedding that is larger than the samples."""

from pathlib import Path

import pytest
import torch

from gpt2train.checkpoint.store import open_weights
from gpt2train.config import CONFIG_FILE, read_run_config
from gpt2train.convert.hf_config import read_shape
from gpt2train.convert.merge import merge
from gpt2train.data.samples import samples_per_epoch
from gpt2train.data.training_data import training_data
from gpt2train.errors import UserError
from gpt2train.io.run_folder import newest_checkpoint
from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.convert.small_tokenizer import write_tokenizer
from tests.gpt2train.jobs import VOCAB, curve, make, weights


@pytest.mark.exhaustive
def test_a_run_of_epochs_ends_after_their_samples(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", epochs=0.5, batch={"micro_batch": 4})
    per_epoch = samples_per_epoch(config)
    steps = -(-per_epoch // 16)
    assert per_epoch == training_data(config).per_epoch and steps not in (1, config.steps)
    state = train(config, alone)
    assert (state.step, state.samples) == (steps, 8 * steps)
    written = read_run_config(Path(config.output) / CONFIG_FILE)
    assert (written.steps, written.epochs) == (steps, 0.5)
    assert curve(config.output, "lr")[-1] == pytest.approx(config.schedule.min_lr)  # the decay ends with the run
    # The same numbers as with these steps; and more epochs go on from there.
    plain = make(tokens, tmp_path / "plain", steps=steps, batch={"micro_batch": 4})
    train(plain, alone)
    assert curve(plain.output) == curve(config.output)
    more = make(tokens, tmp_path / "run", epochs=0.75, batch={"micro_batch": 4})
    assert train(more, alone).step == -(-3 * per_epoch // 32)
    assert curve(more.output)[:steps] == curve(config.output)[:steps]


def test_epochs_too_few_for_the_warmup_are_refused(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    with pytest.raises(UserError, match=r"schedule.warmup 3 steps must be below steps 1; lower it or train longer"):
        train(make(tokens, tmp_path / "run", epochs=0.01), alone)


@pytest.mark.exhaustive
def test_samples_may_be_shorter_than_the_position_embedding(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    model = {"context": 8, "max_positions": 16}
    optimizer = {"weight_decay": 0.0}
    config = make(tokens, tmp_path / "run", steps=4, model=model, optimizer=optimizer)
    train(config, alone)
    longer = make(tokens, tmp_path / "longer", steps=4, model={"context": 16}, optimizer=optimizer)
    train(longer, alone)
    rows, fresh = weights(config.output)["wpe.weight"], weights(longer.output)["wpe.weight"]
    assert rows.shape == (16, 32) and config.shape == longer.shape
    assert open_weights(newest_checkpoint(config.output)).shape == config.shape
    assert torch.equal(rows[8:].abs() < 0.1, torch.ones(8, 32, dtype=torch.bool))  # as they were initialised
    assert not torch.equal(rows[:8], fresh[:8])
    assert curve(config.output, "tokens") == [8 * 8, 2 * 8 * 8, 3 * 8 * 8, 4 * 8 * 8]
    # It resumes, and the other model goes on with shorter samples.
    again = make(tokens, tmp_path / "run", steps=6, model=model, optimizer=optimizer)
    assert train(again, alone).step == 6
    start = {"init_from": longer.output}
    train(make(tokens, tmp_path / "shorter", steps=4, model=model, checkpoints=start), alone)
    for name, changes, message in (
        ("run", {"context": 8, "max_positions": 32}, r"another model.max_positions \(16 there, 32 now\)"),
        ("run", {"context": 8}, r"another model.context \(16 there, 8 now\)"),
        ("run", {"context": 16}, r"another model.context \(8 there, 16 now\)"),
    ):
        with pytest.raises(UserError, match=message):
            train(make(tokens, tmp_path / name, steps=6, model=changes), alone)
    with pytest.raises(UserError, match=r"another model.max_positions \(16 there, 32 now\)"):
        other = {"context": 8, "max_positions": 32}
        train(make(tokens, tmp_path / "other", steps=4, model=other, checkpoints=start), alone)


def test_the_merged_model_has_all_positions(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    config = make(tokens, tmp_path / "run", steps=1, schedule={"warmup": 0}, model={"context": 8, "max_positions": 16})
    train(config, alone)
    merge(config.output, tmp_path / "model", write_tokenizer(tmp_path / "tokenizer", VOCAB))
    assert read_shape(tmp_path / "model").context == 16
