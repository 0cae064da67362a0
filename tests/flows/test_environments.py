"""Two environments installed from the lock files, two folders, other workers and hash seeds: the same tree of bytes."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "tests" / "data" / "html_docs" / "html_docs_dev.tar.xz"
# What holds times, process numbers or the name of the output folder, and no byte of the corpus.
OF_ONE_RUN = ("timings.jsonl", ".flow-run", ".lock", "data-report/", "passport/", "croissant.json")


def install(folder: Path) -> Path:
    """The interpreter of a new environment with what `make install-locked` installs, torch by its version alone."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    torch = re.search(r"^torch==[^ ;]+", (ROOT / "requirements-torch.lock").read_text(), re.MULTILINE)
    assert torch
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, torch[0]], check=True)
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(ROOT / "requirements.lock")], check=True)
    return python


def tree_hash(folder: Path) -> tuple[str, dict[str, str]]:
    """SHA-256 over the sorted paths and hashes of the corpus, and the hash of each file."""
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    kept = {name: path for name, path in sorted(names.items()) if not name.startswith(OF_ONE_RUN)}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in kept.items()}
    lines = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    return hashlib.sha256(lines.encode()).hexdigest(), hashes


@pytest.mark.exhaustive  # installs the package twice: some minutes
def test_two_fresh_environments_write_the_same_tree(tmp_path: Path) -> None:
    with tarfile.open(PAGES) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    trees = []
    for name, workers in (("one", "1"), ("another", "3")):
        python = install(tmp_path / name / "venv")
        output = tmp_path / name / "out"
        command = [str(python), "-m", "flows.dataprep", "--documents", str(tmp_path / "sources")]
        settings = ["--tokenizer.vocab-size", "500", "--clean.min-tokens", "20", "--workers", workers]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT", "PYTHON"))}
        environment = {
            **kept,
            "HOME": str(tmp_path / name),
            "PREFECT_HOME": str(tmp_path / name / "prefect"),
            "PYTHONHASHSEED": workers,
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run([*command, *settings, "--output", str(output)], env=environment, cwd=tmp_path / name, check=True)
        trees.append(tree_hash(output))
    assert {"tokens/train/tokens.bin", "dedup/part-00000.parquet", "clean/_manifest.json"} <= trees[0][1].keys()
    assert trees[0] == trees[1]
