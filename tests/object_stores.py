"""Object stores for the tests: an S3 and a GCS server of loopback, each in a process of its own that ends with ours.

Run as a program it is that process: `python tests/object_stores.py PARENT s3|gcs PORT`.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

KEY, SECRET = "AKIATESTKEYOFTESTS", "test-secret-that-no-file-may-hold"
STARTED = 120.0


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def store_server(kind: str) -> Iterator[dict[str, str]]:
    """Start a server; yields the environment by which clients find it, credentials included."""
    port = free_port()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, __file__, str(os.getpid()), kind, str(port)],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _wait(process, port)
            yield environment(kind, port)
        finally:
            process.kill()
            process.wait()


def environment(kind: str, port: int) -> dict[str, str]:
    address = f"http://127.0.0.1:{port}"
    if kind == "gcs":
        return {"STORAGE_EMULATOR_HOST": address, "FSSPEC_GCS_TOKEN": "anon", "FSSPEC_GCS_PROJECT": "test"}
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + STARTED
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        with contextlib.suppress(ConnectionError, TimeoutError, urllib.error.URLError):
            with contextlib.suppress(urllib.error.HTTPError):
                opener.open(f"http://127.0.0.1:{port}/", timeout=5).close()
            return
        assert process.poll() is None and time.monotonic() < deadline, "the store of the tests did not start"
        time.sleep(0.1)


def serve(kind: str, port: int) -> None:
    if kind == "s3":
        from moto.server import main

        main(["-H", "127.0.0.1", "-p", str(port)])
    else:
        from gcp_storage_emulator.server import create_server

        create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket").run()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from gpt2train.store.process import die_with_parent

    die_with_parent(int(sys.argv[1]))
    serve(sys.argv[2], int(sys.argv[3]))
