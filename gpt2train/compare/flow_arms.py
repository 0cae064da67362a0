"""Arms of a comparison that are settings of the data flow: each is run into a folder, with shared steps cached."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpt2train.errors import RunError, UserError
from gpt2train.store.process import die_with_parent

FLOW = ("-m", "gpt2train", "flow", "dataprep")
SUFFIX = ".toml"  # of a settings file
SHARDS = (".parquet", ".bin", ".idx", ".gz", ".zst")  # written once, so that both arms can have the same file


def prepare_arms(
    corpora: tuple[Path, Path],
    changes: tuple[Sequence[str], Sequence[str]],
    output: Path,
    report: Callable[[str], None],
) -> tuple[Path, Path]:
    """Return the corpora, with each settings file replaced by the output folder of its data flow.

    The second flow starts from a copy of the first one's output: its steps with equal settings and inputs are finished.
    The same call later finds both finished.

    Args:
        corpora: corpora or settings files.
        changes: settings of each arm as `KEY=VALUE`, over those of its file.
        output: folder of the flows' outputs.
        report: called with a line before each flow.

    Raises:
        UserError: a settings file is missing or wrong, or settings are given for a corpus.
        RunError: a flow failed.
    """
    found, earlier = [], None
    for arm, path, chosen in zip("ab", corpora, changes, strict=True):
        if path.suffix != SUFFIX:
            if chosen:
                raise UserError(f"--{arm}-set {chosen[0]}: {path} is no settings file of the data flow ({SUFFIX})")
            found.append(path)
            continue
        if not path.is_file():
            raise UserError(f"there is no settings file {path}; check the path")
        folder = output / f"flow-{arm}"
        if earlier is not None and not folder.exists():
            _copy(earlier, folder)
        report(f"data flow of {path}{''.join(f', {change}' for change in chosen)}: {folder}")
        _run(arm, path, chosen, folder)
        earlier = folder
        found.append(folder)
    return found[0], found[1]


def _copy(source: Path, target: Path) -> None:
    """Copy an output folder; its shards are hard links."""

    def copy(file: str, copied: str) -> None:
        if file.endswith(SHARDS):
            os.link(file, copied)
        else:
            shutil.copy2(file, copied)

    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, symlinks=True, copy_function=copy, ignore=shutil.ignore_patterns(".lock"))
    partial.rename(target)


def _run(arm: str, path: Path, changes: Sequence[str], folder: Path) -> None:
    """Run the data flow in a process of its own, which ends with this one (on Linux)."""
    flags, parent = [], os.getpid()
    for change in changes:
        key, equals, value = change.partition("=")
        if not (key and equals):
            raise UserError(f"--{arm}-set {change}: give KEY=VALUE, such as dedup.threshold=0.5")
        flags += [f"--{key}", value]
    command = [sys.executable, *FLOW, "--config", str(path), "--output", str(folder), *flags]
    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: die_with_parent(parent),
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        kind = UserError if done.returncode == 2 else RunError
        raise kind(f"data flow of {path}: {lines[-1].removeprefix('error: ')}")
