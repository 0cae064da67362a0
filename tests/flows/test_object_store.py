"""The data flow with its lists and its output on S3: killed, run again, the same bytes, and no credential anywhere."""

from pathlib import Path

import pytest

from tests.flows.conftest import Finished
from tests.flows.mini_pipeline import hashes
from tests.object_stores import KEY, SECRET, store_server
from tests.processes import wait_for


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_dataprep_on_s3_killed_and_run_again_gives_the_same_bytes(finished: Finished, tmp_path: Path) -> None:
    s3fs = pytest.importorskip("s3fs")
    mini = finished.mini.another(tmp_path / "mini")
    with store_server("s3") as variables:
        mini.environment.update(variables)
        store = s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=variables["AWS_ENDPOINT_URL"], use_listings_cache=False
        )
        store.mkdir("bucket")
        store.put_file(str(mini.folder / "urls.txt"), "bucket/lists/urls.txt")
        flags = ["--urls", "s3://bucket/lists/*.txt", "--output", "s3://bucket/out"]
        process = mini.start("dataprep", *flags)
        wait_for(lambda: store.exists("bucket/out/clean/_batches") or process.poll() is not None, 180, "cleaning")
        said = (mini.folder / "started.log").read_text()
        assert process.poll() is None, said
        mini.kill(process)
        assert store.exists("bucket/out/.lock")
        done = mini.run("dataprep", *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "tokens: s3://bucket/out/tokens" in done.stdout
        assert "cached" in next(line for line in done.stderr.splitlines() if line.startswith("download"))
        assert not store.exists("bucket/out/.lock")

        trained = mini.run("pretrain", "--data", "s3://bucket/out", "--output", str(tmp_path / "trained"))
        assert trained.returncode == 0, trained.stdout + trained.stderr
        store.get("bucket/out", str(tmp_path / "copy"), recursive=True)
    # A list in a store is identified by its size and tag, on a disk by its hash: the fingerprints differ, no data do.
    there, here = hashes(tmp_path / "copy" / "tokens"), hashes(finished.output / "tokens")
    assert there.pop("_manifest.json") and here.pop("_manifest.json")
    assert there == here
    (run,) = (tmp_path / "trained" / "runs").iterdir()
    assert (run / "checkpoints" / "latest").exists()
    everything = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(everything) > 50
    for text in (
        said.encode(),
        done.stdout.encode(),
        done.stderr.encode(),
        *(path.read_bytes() for path in everything),
    ):
        assert SECRET.encode() not in text and KEY.encode() not in text
