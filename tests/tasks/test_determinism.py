"""The data steps in processes with other hash seeds and numbers of workers: the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from tests.tasks.extract.test_step import download, page
from tests.tasks.cloze.test_step import story
from tasks.boilerplate.settings import BoilerplateSettings
from tasks.boilerplate.step import boilerplate
from tasks.clean.settings import CleanSettings
from tasks.clean.step import clean
from tasks.cloze.settings import ClozeSettings
from tasks.cloze.step import cloze, cloze_file
from tasks.decontaminate.settings import DecontaminateSettings
from tasks.decontaminate.step import decontaminate
from tasks.dedup.settings import DedupSettings
from tasks.dedup.step import dedup
from tasks.extract.settings import ExtractSettings
from tasks.extract.step import extract
from tasks.core.runner import Runner
from tasks.clean.splits import SplitSettings
from tasks.shuffle.settings import ShuffleSettings
from tasks.shuffle.step import shuffle
from tasks.tokenize.settings import TokenizeSettings
from tasks.tokenize.step import tokenize
from tasks.tokenizer.settings import TokenizerSettings
from tasks.tokenizer.step import tokenizer
from gpt2train.store.folder import Folder

if __name__ == "__main__":
    root, workers = Folder(sys.argv[1]), int(sys.argv[2])
    names = ["Anna", "Bert", "Carl", "Dora", "Emil", "Fred", "Gina", "Hans"]
    notes = " ".join(story(name)[:420] for name in names) + story("Ines", 30)
    texts = [*map(story, names), notes, "short"]
    bodies = [f"<html><body><article><p>{text}</p></article></body></html>".encode() for text in texts]
    pages = [page(body, f"http://a.example/{number}") for number, body in enumerate(bodies)]
    settings = CleanSettings(split=SplitSettings(test=0.4))
    with Runner(workers) as runner:
        documents = extract(root, download(root, pages[:4], pages[4:7], pages[7:]), ExtractSettings(), runner)
        boilerplate(root, documents, BoilerplateSettings(), runner)
        cleaned = clean(root, documents, settings, runner)
        drawn = cloze(root, cleaned, ClozeSettings(), runner)
        left = decontaminate(root, cleaned, [("cloze", cloze_file(root, drawn))], DecontaminateSettings(), runner)
        mixed = shuffle(root, dedup(root, left, DedupSettings(), runner), ShuffleSettings(), runner)
        vocabulary = tokenizer(root, mixed, TokenizerSettings(vocab_size=300), runner)
        assert tokenize(root, mixed, vocabulary, TokenizeSettings(), runner).outcome.kept > 0
    assert drawn.outcome.kept > 0 and left.outcome.facts["matches_before"] > 0
"""


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_or_hash_seed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    written = []
    for number, (workers, seed) in enumerate([("1", "0"), ("2", "1")]):
        root = tmp_path / str(number)
        subprocess.run(
            [sys.executable, str(program), str(root), workers],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=True,
        )
        files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "timings.jsonl"]
        written.append({str(path.relative_to(root)): path.read_bytes() for path in files})
    assert written[0].keys() == written[1].keys()
    assert len(written[0]) >= 15
    assert written[0] == written[1]
