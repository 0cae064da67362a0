"""Sample texts of a run's validations in samples.jsonl; does not import torch.

{"step": 250, "prompt": "", "text": "The …"}
"""

import json
import logging
from pathlib import Path
from typing import Any

from gpt2train.store.files import read_json_lines, write_atomic, write_error

log = logging.getLogger("gpt2train")

FILE = "samples.jsonl"


def read_samples(run: str | Path) -> list[dict[str, Any]]:
    """Read the sample texts of a run folder, oldest first; lines that cannot be parsed are left out."""
    path = Path(run) / FILE
    return read_json_lines(path.read_bytes() if path.exists() else b"", _is_sample)[0]


def _is_sample(row: dict[str, Any]) -> bool:
    return type(row.get("step")) is int and isinstance(row.get("text"), str) and isinstance(row.get("prompt"), str)


class SampleWriter:
    """Writer of samples.jsonl; samples of steps after `step`, left by a run that was killed, are removed.

    Raises:
        RunError: the disk is full.
        UserError: the run folder cannot be written.
    """

    def __init__(self, run: str | Path, step: int) -> None:
        self._path = Path(run) / FILE
        if self._path.exists():
            kept = [row for row in read_samples(run) if row["step"] <= step]
            write_atomic(self._path, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def write(self, step: int, prompt: str, text: str) -> None:
        """Append a sample; a failure is a warning, since the run does not need it."""
        line = json.dumps({"step": step, "prompt": prompt, "text": text}) + "\n"
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(line)
        except OSError as error:
            log.warning("warning: sample of step %d: %s", step, write_error(self._path, error))
