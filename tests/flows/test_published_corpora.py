"""Settings of published corpora, on documents of the same columns, from a hub on loopback by the real client.

The columns are those of the cards of HuggingFaceFW/fineweb, HuggingFaceFW/fineweb-edu and bigcode/the-stack-dedup, of
nanochat's reader of karpathy/climbmix-400b-shuffle, and of Skylion007/openwebtext.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.settings import DataprepSettings, resolve
from tests.hub_server import Hub

PAGE = {"dump": "CC-MAIN-2013-20", "file_path": "s3://commoncrawl/x.warc.gz", "language": "en", "language_score": 0.9}
FINEWEB = {"text": "page {}", "id": "<urn:uuid:{}>", "url": "http://example.org/{}", **PAGE, "token_count": 2}
STACK = {
    **{"hexsha": "sha{}", "size": 9, "ext": "py", "lang": "Python", "max_stars_repo_path": "a/{}.py"},
    **{"max_stars_repo_name": "some/code", "max_stars_repo_licenses": ["MIT", "Apache-2.0"], "max_stars_count": None},
    **{"content": "code {}", "avg_line_length": 4.0, "max_line_length": 7, "alphanum_fraction": 0.8},
}
CARD = "---\nconfigs:\n" + "".join(
    f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {path}\n"
    for name, path in (("default", "data/*/*"), ("sample-10BT", "sample/10BT/*"))
)
CARD += "---\n# A card\n"
# Repository, branch, files that are read, files that are not, and a row.
CORPORA: dict[str, tuple[str, str, list[str], list[str], Mapping[str, Any]]] = {
    "fineweb": (
        *("HuggingFaceFW/fineweb", "main", ["sample/10BT/000_00000.parquet"], ["data/CC-MAIN-2013-20/0.parquet"]),
        FINEWEB | {"date": "2013-05-18T05:48:54Z"},
    ),
    "fineweb-edu": (
        *("HuggingFaceFW/fineweb-edu", "main", ["sample/10BT/000_00000.parquet"], ["data/CC-MAIN-2013-20/0.parquet"]),
        FINEWEB | {"score": 3.1, "int_score": 3},
    ),
    "climbmix": (
        *("karpathy/climbmix-400b-shuffle", "main", ["shard_00000.parquet", "shard_00169.parquet"]),
        *(["shard_00170.parquet", "shard_06542.parquet"], {"text": "mixed {}"}),
    ),
    "openwebtext-texts": (
        *("Skylion007/openwebtext", "refs/convert/parquet", ["plain_text/train/0000.parquet"], []),
        {"text": "linked {}"},
    ),
    "the-stack": (
        *("bigcode/the-stack-dedup", "main", ["data/python/train-00000-of-00144.parquet"]),
        *(["data/c/train-00000-of-00257.parquet"], STACK),
    ),
}
PROGRAM = """
import json, sys
from flows.settings import DataprepSettings, resolve
from flows.sources import Sources
from gpt2train.store.folder import Folder
from tasks.sources.texts import texts
from tests.tasks.corpus import Inline, rows_of

made = {}
for name in sys.argv[2:]:
    root, settings = Folder(f"{sys.argv[1]}/{name}"), resolve(DataprepSettings, f"dataprep/{name}")
    found = texts(root, Sources(settings).documents.texts, settings.json_key, settings.texts, Inline())
    made[name] = [rows_of(root, found), dict(found.outcome.facts)]
print(json.dumps(made))
"""


def parquet(row: Mapping[str, Any], *numbers: int) -> bytes:
    rows = [
        {key: value.format(number) if isinstance(value, str) else value for key, value in row.items()}
        for number in numbers
    ]
    pq.write_table(pa.Table.from_pylist(rows), sink := io.BytesIO())
    return sink.getvalue()


def test_documents_have_the_text_the_id_and_the_licence_that_are_published(tmp_path: Path) -> None:
    with Hub() as hub:
        for repository, branch, read, unread, row in CORPORA.values():
            files = {path: parquet(row, 2 * place, 2 * place + 1) for place, path in enumerate(read)}
            files |= {path: parquet(row, 99) for path in unread}
            hub.put(f"datasets/{repository}", files | {"README.md": CARD.encode()}, branch)
        environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        environment.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), *CORPORA]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    for name, (_, _, read, _, row) in CORPORA.items():
        rows, facts = made[name]
        text = row.get("text") or row["content"]
        assert [one["text"] for one in rows] == [text.format(number) for number in range(2 * len(read))], name
        assert {one["date"] for one in rows} == {row.get("date")}
        urls = [one["url"] for one in rows]
        if "url" in row:
            assert urls == ["http://example.org/0", "http://example.org/1"]
        elif "hexsha" in row:
            assert urls == [f"{Path(read[0]).name}#sha0", f"{Path(read[0]).name}#sha1"]
            assert facts["license_Apache-2.0, MIT"] == 2
        else:
            assert urls == [f"{Path(path).name}#{number}" for path in read for number in (1, 2)]


@pytest.mark.parametrize("name", CORPORA)
def test_the_settings_name_the_source_and_its_licence(name: str) -> None:
    settings = resolve(DataprepSettings, f"dataprep/{name}")
    assert all(place.startswith(f"hf://datasets/{CORPORA[name][0]}") for place in settings.documents)
    assert settings.tokenizer.name == "gpt2" and settings.output == f"out/{name}"
