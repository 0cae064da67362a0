"""Many faulty clients at once: no leak, no hang, and correct answers."""

import http.client
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.adversarial_clients import KINDS
from benchmarks.soak import run
from tests.gpt2train.serve.fixed_text_model import write_reciting_model


@pytest.mark.exhaustive
def test_many_faulty_clients_cause_no_leak_and_no_hang(tmp_path: Path) -> None:
    found, wrong = run(tmp_path / "model", "nano", seconds=8, clients=12)
    assert wrong == []
    assert {name.partition(":")[0] for name in found.counts} == set(KINDS)
    assert {"whole: right", "stream: right", "burst: some refused"} <= set(found.counts)


@pytest.mark.exhaustive
def test_a_server_of_64_files_answers_beside_200_half_heads(tmp_path: Path) -> None:
    write_reciting_model(tmp_path / "model", "abc")
    command = [sys.executable, "-m", "gpt2train", "serve", "--model", str(tmp_path / "model"), "--port", "0"]
    with (tmp_path / "log").open("w+b") as log, subprocess.Popen(
        ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *command], stdout=subprocess.PIPE, stderr=log
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            address = process.stdout.readline().decode().split()[-1].removeprefix("http://")
            half = []
            for _ in range(200):
                half.append(socket.create_connection(address.split(":"), timeout=60))  # type: ignore[arg-type]
                half[-1].sendall(b"POST /api HTTP/1.1\r\nX: ")
            for _ in range(5):
                answer = http.client.HTTPConnection(address, timeout=30)
                answer.request("GET", "/health")
                assert answer.getresponse().status == 200
        finally:
            process.terminate()
        log.seek(0)
        assert len(log.read().splitlines()) <= 2
