"""Trackers: metrics reach each selected one, a resumed run stays one run there, and a failure ends no run."""

import contextlib
import gzip
import json
import logging
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpt2train.checkpoint.manifest import verify
from gpt2train.config import RunConfig
from gpt2train.errors import UserError
from gpt2train.monitoring import trackers
from gpt2train.monitoring.metrics import MetricsWriter, read_metrics
from gpt2train.monitoring.trackers import open_trackers
from gpt2train.settings import build
from gpt2train.store.run_folder import newest_checkpoint
from tests.gpt2train.jobs import finish, make, start_alone, write
from tests.processes import wait_for


def config(output: Path, **logging: object) -> RunConfig:
    base = {"vocab": 300, "output": str(output), "data": {"train": "t"}, "logging": {"tensorboard": False}}
    output.mkdir(exist_ok=True)
    return build(RunConfig, base, {"logging": logging})


def write_rows(settings: RunConfig, first: int, last: int) -> None:
    writer = MetricsWriter(settings.output, first - 1, open_trackers(settings, first - 1))
    for step in range(first, last + 1):
        writer.write({"step": step, "loss": 1 / step, "odd_norm": float("nan"), "tokens": step * 8})
    writer.close()


def test_tensorboard_gets_finite_values_only(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = config(tmp_path / "run", tensorboard=True)
    write_rows(settings, 1, 3)
    write_rows(settings, 3, 4)  # step 3 again, after a kill
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert board.Tags()["scalars"] == ["loss"]
    drawn = [(one.step, one.value) for one in board.Scalars("loss")]
    assert drawn == [(step, pytest.approx(1 / step)) for step in (1, 2, 3, 4)]
    assert [row["step"] for row in read_metrics(settings.output)] == [1, 2, 3, 4]
    assert read_metrics(settings.output)[0]["odd_norm"] is None


def test_a_folder_of_the_curves_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    """Without the traceback of TensorBoard's thread at each attempt: in a process that reports as usual."""
    program = (
        "import sys; from pathlib import Path; from tests.gpt2train.monitoring.test_trackers import *;"
        "from tensorboard.compat.tensorflow_stub.io import gfile; logging.basicConfig(format='%(message)s');"
        "gfile.io = type('io', (), {'open': lambda *_, **__: Path('/none/none').open()});"
        "write_rows(config(Path(sys.argv[1]), tensorboard=True), 1, 3)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    first, last = made.stderr.splitlines()
    assert made.returncode == 0 and "No such file" in first and "the run goes on" in first
    assert last == "warning: logging.tensorboard lacks 3 rows; metrics.jsonl has all"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_of_the_curves_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = config(tmp_path / "run", tensorboard=True)
    writer = MetricsWriter(settings.output, 0, open_trackers(settings, 0))
    wait_for(lambda: [*tmp_path.glob("run/tensorboard/*")], 60, "the file of the curves")
    (curves,) = (tmp_path / "run" / "tensorboard").iterdir()
    (tmp_path / "full").symlink_to("/dev/full")
    (tmp_path / "full").replace(curves)  # at once: the writer thread would create the file again
    with caplog.at_level(logging.WARNING, "gpt2train"):
        for step in range(1, 1000):
            writer.write({"step": step, "loss": 1.0})
            if caplog.messages:
                break
            time.sleep(0.01)  # a thread writes
        writer.close()
    assert "No space left on device; the run goes on" in caplog.messages[0]
    assert len(read_metrics(settings.output)) == step


class Server(ThreadingHTTPServer):
    """MLflow's REST calls: rows by step, and the answer to all requests while it is away."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Calls)
        self.away: int | None = None  # status of the answer
        self.gone: dict[str, str] = {}  # run that was deleted -> code of the answer
        self.hang = threading.Event()
        self.hang.set()
        self.rows: dict[int, dict[str, float]] = {}
        self.calls: list[str] = []


class Calls(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.server.hang.wait(60)
        call = self.path.partition("?")[0].partition("/mlflow/")[2]
        self.server.calls.append(call)
        run = {"run": {"info": {"run_id": f"r{len(self.server.calls)}", "experiment_id": "1"}, "data": {}}}
        answer = {"experiments/get-by-name": {"experiment": {"experiment_id": "1"}}, "runs/create": run}.get(call, {})
        away, code = self.server.away, "PERMISSION_DENIED" if self.server.away == 403 else "TEMPORARILY_UNAVAILABLE"
        if gone := self.server.gone.get(body.get("run_id", "")):
            away, code = 400, gone
        if away is None:
            for metric in body.get("metrics", []):
                self.server.rows.setdefault(metric["step"], {})[metric["key"]] = metric["value"]
        content = json.dumps(answer if away is None else {"error_code": code}).encode()
        self.send_response(away or 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pytest.importorskip("mlflow", reason="MLflow is not installed (extra track)")
    with Server() as stub:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{stub.server_port}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        for name in ("RETRY_SECONDS", "MAX_RETRY_SECONDS"):
            monkeypatch.setattr(trackers, name, 0.01)
        threading.Thread(target=stub.serve_forever, args=(0.01,), daemon=True).start()
        yield stub
        stub.shutdown()


def rows(*steps: int) -> dict[int, dict[str, float]]:
    return {step: {"loss": 1 / step, "lr": 0.5} for step in steps}


@pytest.mark.parametrize("away_first", [False, True])
def test_a_server_that_was_away_gets_all_rows_in_one_request_for_each_step_at_most(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, away_first: bool
) -> None:
    server.away = 503 if away_first else None
    with caplog.at_level(logging.INFO, "gpt2train"):
        settings = config(tmp_path / "run", mlflow="x")
        writer = MetricsWriter(settings.output, 0, open_trackers(settings, 0))
        for step in range(1, 4):
            writer.write({"step": step} | rows(step)[step])
        wait_for(lambda: away_first or len(server.rows) == 3, 60, "the first rows")
        server.away = 503
        for step in range(4, 9):
            writer.write({"step": step} | rows(step)[step])
        wait_for(lambda: "the run goes on" in caplog.text, 60, "the warning")
        server.away = None
        wait_for(lambda: "works again, and has all rows" in caplog.text, 60, "the rows")
        writer.close()
    assert server.rows == rows(*range(1, 9)) and server.calls[-1] == "runs/update"
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    answered = len(server.calls)
    write_rows(settings, 9, 40)  # a later job, whose rows come faster than the answers
    assert len(server.calls) - answered <= 2 + 32 and 40 in server.rows


def test_a_server_that_does_not_answer_holds_neither_the_steps_nor_the_end(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPEN_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(trackers, name, 0.1)
    monkeypatch.setattr(trackers, "MAX_ROWS", 50)
    server.hang.clear()
    with caplog.at_level(logging.WARNING, "gpt2train"):
        settings = config(tmp_path / "run", mlflow="x")
        write_rows(settings, 1, 60)
    assert caplog.messages[-1] == "warning: logging.mlflow lacks 60 rows; metrics.jsonl has all"
    assert len(read_metrics(settings.output)) == 60
    server.hang.set()
    wait_for(lambda: "logging.mlflow" not in [thread.name for thread in threading.enumerate()], 60, "its thread's end")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_that_cannot_be_opened_takes_no_metrics_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A path that is no folder, and a port at which nothing listens."""
    for constant in ("RETRY_SECONDS", "MAX_RETRY_SECONDS"):
        monkeypatch.setattr(trackers, constant, 0.01)
    settings = config(tmp_path / "run", **{name: True if name == "tensorboard" else "x"})
    if name == "mlflow":
        pytest.importorskip("mlflow", reason="MLflow is not installed (extra track)")
        with Server() as closed:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed.server_port}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    else:
        (tmp_path / "run" / "tensorboard").touch()
    with caplog.at_level(logging.WARNING, "gpt2train"):
        write_rows(settings, 1, 3)
    first, last = caplog.messages
    assert f"warning: logging.{name}: " in first and "the run goes on" in first
    assert last == f"warning: logging.{name} lacks 3 rows; metrics.jsonl has all"
    assert len(read_metrics(settings.output)) == 3


@pytest.mark.parametrize("step", [1, 5])
def test_a_server_that_refuses_ends_no_run(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, step: int
) -> None:
    server.away = 403
    settings = config(tmp_path / "run", mlflow="x")
    with caplog.at_level(logging.WARNING, "gpt2train"):
        write_rows(settings, step, step)
    assert "PERMISSION_DENIED" in caplog.messages[0] and "the run goes on" in caplog.messages[0]
    assert caplog.messages[-1].endswith("lacks 1 row; metrics.jsonl has all")


@pytest.mark.parametrize("code", ["RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"])
def test_a_tracked_run_that_was_deleted_is_begun_anew(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    """Before the training resumes at its start, and while it runs."""
    settings = config(tmp_path / "run", mlflow="x")
    identity = tmp_path / "run" / "tracking.json"
    identity.write_text('{"mlflow": "deleted"}')
    server.gone["deleted"] = code
    with caplog.at_level(logging.WARNING, "gpt2train"):
        writer = MetricsWriter(settings.output, 0, open_trackers(settings, 0))
        writer.write({"step": 1} | rows(1)[1])
        wait_for(lambda: server.rows == rows(1), 60, "the first row")
        assert caplog.messages == [
            "warning: logging.mlflow: the run deleted was deleted there; a new one gets the rows after step 0"
        ]
        second = json.loads(identity.read_text())["mlflow"]
        server.gone[second] = code
        writer.write({"step": 2} | rows(2)[2])
        wait_for(lambda: server.rows == rows(1, 2), 60, "the second row")
        writer.close()
    assert f"the run {second} was deleted there; a new one gets the rows after step 1" in caplog.text
    assert json.loads(identity.read_text())["mlflow"] not in (second, "deleted") and len(caplog.messages) == 3


def test_mlflow_continues_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (extra track)")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    settings = config(tmp_path / "run", mlflow="gpt2")
    write_rows(settings, 1, 2)
    write_rows(settings, 3, 4)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("gpt2").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert [one.value for one in client.get_metric_history(run.info.run_id, "loss")] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert run.data.params["model.layers"] == "12" and run.data.params["vocab"] == "300"


class WandbServer(ThreadingHTTPServer):
    """As much of the server of Weights & Biases as a run needs, until it fails."""

    daemon_threads = True

    def __init__(self, outage: str | None) -> None:
        super().__init__(("127.0.0.1", 0), WandbCalls)
        self.outage = outage
        self.rows = 0
        if outage == "refuses":
            self.server_close()
        else:
            threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class WandbCalls(BaseHTTPRequestHandler):
    server: WandbServer

    def log_message(self, format: str, *args: object) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.outage == "stalls":
            time.sleep(300)
        content = json.dumps(self.answer(body)).encode() if self.server.outage is None else b""
        self.send_response(200 if self.server.outage is None else 500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST

    def answer(self, body: bytes) -> dict[str, object]:
        if self.path != "/graphql":
            content = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            self.server.rows += content.count(b"_step")
            return {}
        call = json.loads(body)
        names = call.get("variables", {})
        if names.get("name") == "deleted":
            reason = "run me/gpt2/deleted was previously created and deleted; try a new run id"
            return {"errors": [{"message": reason}], "data": None}
        if "UpsertBucket" in call["query"]:
            project = {"id": "p", "name": names.get("project"), "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": names.get("name"), "displayName": "run", "config": "{}", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket | {"historyLineCount": 0}, "inserted": True}}}
        if "createRunFiles" in call["query"]:
            files = [{"name": name, "uploadUrl": f"http://{self.headers['Host']}/file"} for name in names["files"]]
            return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        viewer = {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"data": {"viewer": viewer} if "viewer" in call["query"] else {}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "outage", ["dies", *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("refuses", "stalls", "answers 500"))]
)
def test_an_outage_of_weights_and_biases_is_one_warning_that_names_the_rows(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outage: str
) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed (extra track)")
    server = WandbServer(None if outage == "dies" else outage)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    logging = {"wandb": "gpt2", "interval": 1, "tensorboard": False}
    run = make(tokens, tmp_path / "run", logging=logging, validation={"interval": 100_000}, steps=100_000)
    printed = tmp_path / "printed"
    process = start_alone(write(run), printed)
    if outage == "dies":
        wait_for(lambda: server.rows, 200, "the first rows")
        server.outage = "answers 500"
    else:
        wait_for(lambda: [*Path(run.output).glob("wandb/offline-run-*/*.wandb")], 200, "the fall back")
    wait_for(lambda: len(read_metrics(run.output)) > 20, 200, "steps")
    process.terminate()
    code, _, _ = finish(process)
    server.server_close()
    lines = printed.read_text()
    assert code == 0 and "Traceback" not in lines, lines[-3000:]
    warnings = [line for line in lines.splitlines() if "warning: logging." in line]
    assert len(warnings) == 1, warnings
    folder = Path(warnings[0].rpartition("wandb sync ")[2])
    (stored,) = folder.glob("run-*.wandb")
    steps = len(read_metrics(run.output))
    assert verify(newest_checkpoint(run.output)).position.step == steps
    assert stored.read_bytes().count(b"grad_norm") >= steps


@pytest.mark.exhaustive
def test_weights_and_biases_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed (extra track)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = config(tmp_path / "run", wandb="gpt2")
    write_rows(settings, 1, 2)
    identity = json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"]
    write_rows(settings, 3, 3)

    def stored() -> bytes:
        folder = tmp_path / "run" / "wandb"
        return b"".join(path.read_bytes() for path in folder.glob(f"offline-run-*/run-{identity}.wandb"))

    def whole() -> bool:  # values of the first job and of the one that went on
        return all(value in stored() for value in (b"0.5", b"0.3333333333333333"))

    wait_for(whole, 60, "both jobs' values")  # W&B's own process may write a moment after `finish` returned
    assert b"odd_norm" not in stored()  # not a number, so not drawn


@pytest.mark.slow
def test_a_run_of_weights_and_biases_that_was_deleted_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed (extra track)")
    server = WandbServer(None)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    settings = config(tmp_path / "run", wandb="gpt2")
    (tmp_path / "run" / "tracking.json").write_text('{"wandb": "deleted"}')
    with caplog.at_level(logging.WARNING, "gpt2train"):
        write_rows(settings, 1, 2)
    server.server_close()
    assert [text for text in caplog.messages if "warning" in text] == [
        "warning: logging.wandb: the run deleted was deleted there; a new one gets the rows after step 0"
    ]
    assert server.rows and json.loads((tmp_path / "run" / "tracking.json").read_text())["wandb"] != "deleted"


@pytest.mark.slow
def test_weights_and_biases_without_a_key_asks_nobody_on_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed (extra track)")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    program = (
        "import sys; from pathlib import Path; from tests.gpt2train.monitoring.test_trackers import config, write_rows;"
        "write_rows(config(Path(sys.argv[1]), wandb='gpt2'), 1, 3)"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "HOME": str(tmp_path)}
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of the terminal
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert process.wait(60) == 0, shown.decode()
    assert b"Enter your choice" not in shown and b"wandb sync" in shown
    assert len([*tmp_path.glob("run/wandb/offline-run-*/run-*.wandb")]) == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_tracker_has_its_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"logging.{name} needs the extra .track.: pip install"):
        open_trackers(config(tmp_path / "run", **{name: "p"}), 0)
