"""Training on two corpora with document masks."""

from pathlib import Path

from gpt2train.parallel.mesh import DistContext
from gpt2train.train import train
from tests.gpt2train.jobs import curve, make


def test_the_data_settings_change_the_loss(tokens: Path, tmp_path: Path, alone: DistContext) -> None:
    """3 of 4 samples come from one corpus; the other is gone through twice."""
    corpora = [{"prefix": str(tokens / "train"), "weight": 0.75}, {"prefix": str(tokens / "valid"), "weight": 0.25}]
    data = {"train": corpora, "valid": str(tokens / "valid")}
    choices = dict.fromkeys(("reset_positions", "mask_documents", "eod_mask_loss"), True)
    losses = []
    for name, documents in (("whole", choices), ("plain", {})):
        config = make(tokens, tmp_path / name, data=data, documents=documents, steps=10)
        train(config, alone)
        losses.append(curve(config.output))
    assert losses[0][-1] < losses[0][0]
    assert abs(losses[0][0] - losses[1][0]) > 1e-4  # the same weights, other targets and positions
