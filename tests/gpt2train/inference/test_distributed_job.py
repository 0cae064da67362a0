"""A served model over several processes: text of one process, an error when a rank dies, a clean end on SIGTERM."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient

from gpt2train.convert.huggingface import read_model
from gpt2train.data.tokenizer import load_tokenizer
from gpt2train.inference.decoder import LocalDecoder
from gpt2train.serve.batcher import Batcher
from gpt2train.serve.server import make_app
from gpt2train.serve.service import Service
from gpt2train.serve.settings import ServeSettings
from tests.gpt2train.parallel.small_model_folder import write_folder
from tests.listening_sockets import renamed_python, sampled
from tests.processes import wait_for, wait_until_ended

pytestmark = pytest.mark.slow
SECONDS = 200.0
PROMPTS = ["Once upon a time", "In", "The house of the rising sun is here, and"]
GREEDY = {"prompt": PROMPTS, "max_tokens": 24, "temperature": 0}
SAMPLED = {"prompt": PROMPTS, "max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 7, "n": 2}
LONG = {"prompt": "On", "max_tokens": 120, "temperature": 0, "logit_bias": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("served"))


class Server:
    def __init__(self, command: list[str]) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self.job.stdout is not None
        first = self.job.stdout.readline()
        found = re.search(r"http://\S+:\d+", first)
        assert found, (first, self.job.communicate(timeout=SECONDS)[1])
        self.address = found[0]
        processes = psutil.Process(self.job.pid).children(recursive=True)
        self.ranks = {int(one.environ()["RANK"]): one for one in processes if "RANK" in one.environ()}

    def post(self, body: dict[str, Any]) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"{self.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def finish(self) -> tuple[int, str]:
        _, err = self.job.communicate(timeout=SECONDS)
        wait_until_ended(self.ranks.values())
        return self.job.returncode, err


@contextlib.contextmanager
def served(folder: Path, *flags: str, through: tuple[str, ...] = ("gpt2train",)) -> Iterator[Server]:
    server = Server([sys.executable, "-m", *through, "serve", "--model", str(folder), "--port", "0", *flags])
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.job.pid, signal.SIGKILL)
        for rank in server.ranks.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.kill()
        server.job.communicate()


def texts(answer: dict[str, Any]) -> list[tuple[int, str]]:
    return [(choice["index"], choice["text"]) for choice in answer["choices"]]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[tuple[int, str]]]:
    batcher = Batcher(LocalDecoder(read_model(folder), 8))
    batcher.start()
    client = TestClient(make_app(Service(batcher, load_tokenizer(folder), ServeSettings(), "model")))
    answers = [client.post("/v1/completions", json=body).json() for body in (GREEDY, SAMPLED)]
    batcher.close()
    return [texts(answer) for answer in answers]


def test_four_processes_answer_as_one_and_end_on_sigterm(folder: Path, expected: list[list[tuple[int, str]]]) -> None:
    with served(folder, "--tp", "4") as server:
        assert sorted(server.ranks) == [0, 1, 2, 3]
        found = [server.post(body) for body in (GREEDY, SAMPLED)]
        assert [status for status, _ in found] == [200, 200], found
        assert [texts(answer) for _, answer in found] == expected
        assert len({text for _, text in expected[0] + expected[1]}) == 9
        server.job.terminate()
        assert server.finish() == (0, "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("flags", [(), ("--tp", "2")], ids=["one process", "two processes"])
def test_other_machines_reach_no_port_of_a_server_by_default(folder: Path, flags: tuple[str, ...]) -> None:
    server = Server(renamed_python("-m", "gpt2train", "serve", "--model", str(folder), "--port", "0", *flags))
    try:
        with sampled(server.job.pid) as sockets:
            assert server.post(GREEDY)[0] == 200
            wait_for(lambda: sockets.samples > 2, SECONDS, "some samples")
        assert ("127.0.0.1", int(server.address.rpartition(":")[2])) in sockets.found
        assert sockets.outside == {}
        server.job.terminate()
        assert server.finish() == (0, "")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.job.pid, signal.SIGKILL)
        server.job.communicate()


@pytest.mark.exhaustive
def test_a_job_by_torchrun_answers_the_same(folder: Path, expected: list[list[tuple[int, str]]]) -> None:
    launched = ("gpt2train.launch", "--", "--standalone", "--nproc-per-node", "2", "-m", "gpt2train.inference")
    with served(folder, "--tp", "2", through=launched) as server:
        status, answer = server.post(GREEDY)
        assert status == 200 and texts(answer) == expected[0]
        server.job.terminate()
        assert server.finish() == (0, "")


@pytest.mark.exhaustive
def test_a_rank_killed_in_a_request_is_named_and_ends_all(folder: Path, expected: list[list[tuple[int, str]]]) -> None:
    with served(folder, "--tp", "2", "--pp", "2") as server:
        found = [server.post(body) for body in (GREEDY, SAMPLED)]
        assert [texts(answer) for _, answer in found] == expected
        answers: list[tuple[int, Any] | None] = []

        def ask() -> None:
            while None not in answers:
                try:
                    answers.append(server.post(LONG))
                except OSError:
                    answers.append(None)  # no process is left

        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        while not answers:
            time.sleep(0.02)
        server.ranks[3].kill()
        code, err = server.finish()
        asker.join(SECONDS)
    assert answers[0] is not None and answers[0][0] == 200
    assert answers[-1] is None and all(answer is None or answer[0] in (200, 500, 503) for answer in answers), answers
    assert code == 1
    assert "rank 3 on " in err and "SIGKILL" in err, err


@pytest.mark.exhaustive
def test_a_rank_that_hangs_is_named_and_ends_the_service(folder: Path) -> None:
    with served(folder, "--tp", "2", "--peer-timeout", "3") as server:
        server.ranks[1].suspend()
        code, err = server.finish()
    assert code == 1
    assert "rank 1 gave no sign of life" in err, err
