"""Parts of Prefect that it does not document, compared with Prefect's own way."""

import contextlib
import inspect
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import httpx
import pytest
from prefect import Flow, flow, flow_engine
from prefect import context as prefect_context
from prefect._internal.concurrency.cancellation import CancelledError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.concurrency import _leases as leases
from prefect.events.clients import NullEventsClient
from prefect.exceptions import ObjectNotFound
from prefect.flow_engine import FlowRunEngine
from prefect.runtime import flow_run
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_DEFAULT_RESULT_STORAGE_BLOCK,
    PREFECT_RESULTS_DEFAULT_SERIALIZER,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    get_current_settings,
    temporary_settings,
)

import flows.compat.prefect as compat
from gpt2train.errors import RunError, UserError

FLOW_RUN = uuid.uuid4()


class Client(SyncPrefectClient):
    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9/api")
        self.sent: list[tuple[str, str, Any]] = []

    def request(self, method: Any, path: Any, params: Any = None, path_params: Any = None, **more: Any) -> Any:
        self.sent.append((method, path.format(**(path_params or {})), more.get("json")))
        return httpx.Response(200, json={}, request=httpx.Request(method, "http://127.0.0.1:9"))


def test_the_signature_becomes_the_parameters_which_are_stored_as_prefect_stores_them() -> None:
    def function(**parameters: int) -> int:
        return 2 * parameters["number"]

    number = inspect.Parameter("number", inspect.Parameter.KEYWORD_ONLY, annotation=int)
    compat.set_signature(function, inspect.Signature([number]))
    own = compat.ParametersFlow(function, name="doubled")

    @flow(name="plain")
    def plain(*, number: int) -> int:
        return 2 * number

    assert own.parameters.properties == plain.parameters.properties
    assert own.parameters.required == plain.parameters.required == ["number"]
    parameters = {"number": 1, "names": ("a", "b"), "path": uuid.UUID(int=1), "nested": {"x": [1.5, None]}}
    assert own.serialize_parameters(parameters) == Flow(function, name="plain").serialize_parameters(parameters)
    assert own.validate_parameters({"number": "no number"}) == {"number": "no number"}
    for name in ("validate_parameters", "serialize_parameters"):
        assert list(inspect.signature(getattr(own, name)).parameters) == ["parameters"]
        assert callable(getattr(Flow, name))  # overridden, not added


def test_an_artifact_is_updated_by_the_same_request_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    monkeypatch.setattr("prefect.events.utilities.emit_event", lambda **event: events.append(event))
    own, plain, artifact = Client(), Client(), uuid.uuid4()
    compat.update_artifact(own, artifact, "text", "about")
    assert events == []
    plain.update_artifact(artifact, ArtifactUpdate(data="text", description="about"))
    assert own.sent == plain.sent and len(events) == 1


def test_queues_are_drained_at_once_and_queued_items_dropped() -> None:
    services = (compat.APILogWorker, compat.EventsWorker)
    for service in services:
        assert {"timeout", "at_exit"} <= inspect.signature(service.drain_all).parameters.keys()
        assert not inspect.iscoroutinefunction(service.drain_all)
    compat.flush(0.1)  # nothing is queued
    made = [service.__new__(service) for service in services]
    for number, one in enumerate(made):
        one._queue = queue.Queue()
        one._queue.put("item")
        type(one)._instances[number] = one
    try:
        compat.discard()
        assert all(one._queue.empty() for one in made)
    finally:
        for number, one in enumerate(made):
            del type(one)._instances[number]


def test_a_client_that_is_cut_off_retries_nothing_and_sends_neither_log_lines_nor_events() -> None:
    from prefect.context import get_settings_context

    before = get_current_settings().model_copy(deep=True)
    try:
        compat.disconnect()
        assert PREFECT_CLIENT_MAX_RETRIES.value() == 0
        assert not get_settings_context().settings.logging.to_api.enabled  # as the handler reads it
        assert compat.EventsWorker.instance().client_type is NullEventsClient
    finally:
        compat.EventsWorker.set_client_override(None)
        get_current_settings().client.max_retries = before.client.max_retries
        get_current_settings().logging.to_api.enabled = before.logging.to_api.enabled


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (401, "{}", UserError, r"refuses the key \(status 401\); set PREFECT_API_AUTH_STRING"),
        (403, "<html>", UserError, r"refuses the key \(status 403\)"),
        (404, "{}", UserError, r"no API of a Prefect server answers at .* \(status 404\); .* ends with /api"),
        (200, "<html>", UserError, r"no API of a Prefect server answers at .* \(Expecting value: "),
        (200, '"0.7.0"', UserError, r"too old or too new \(.* server: 0\.7\.0"),
        (500, "{}", RunError, r"fails \(status 500\); see its log"),
    ],
)
def test_a_server_that_takes_no_run_is_explained(status: int, body: str, kind: type[Exception], said: str) -> None:
    answer = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    client = SyncPrefectClient("http://127.0.0.1:9/api", httpx_settings={"transport": answer})
    with pytest.raises(Exception, match=r"\w") as raised:
        client.raise_for_api_version_mismatch()
    refusal = compat.explain_refusal(raised.value)
    assert type(refusal) is kind
    assert re.search(said, str(refusal))
    assert compat.explain_refusal(ValueError("a bug")) is None


@pytest.mark.parametrize("setting", [PREFECT_DEFAULT_RESULT_STORAGE_BLOCK, PREFECT_RESULTS_DEFAULT_SERIALIZER])
def test_a_storage_of_results_that_is_not_there_is_explained(setting: Any) -> None:
    assert compat.explain_results() is None
    with temporary_settings({setting: "gone"}):
        reason = compat.explain_results()
    assert reason and f"correct or unset {PREFECT_DEFAULT_RESULT_STORAGE_BLOCK.name} or" in str(reason)


@pytest.mark.parametrize("own", [True, False])
def test_a_run_goes_on_without_its_slot(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's way is to end it; a server that was restarted knows no slot any more."""
    lost = threading.Event()

    class Server(Client):
        def renew_concurrency_lease(self, *_: Any, **__: Any) -> None:
            lost.set()
            raise ObjectNotFound(http_exc=ValueError("410 Gone"))

    monkeypatch.setattr(leases, "get_client", lambda **_: Server())
    monkeypatch.setattr(leases, "_RENEWAL_MAX_ATTEMPTS", 1)
    monkeypatch.setattr(flow_engine, "maintain_concurrency_lease", leases.maintain_concurrency_lease)
    if own:
        compat.keep_running_without_slot()

    def work() -> None:
        with flow_engine.maintain_concurrency_lease(uuid.uuid4(), 300, raise_on_lease_renewal_failure=True):
            assert lost.wait(60)
            for _ in range(50 if own else 6000):
                time.sleep(0.01)

    with contextlib.nullcontext() if own else pytest.raises(CancelledError):
        work()


# What Prefect starts instead of its temporary server, which takes 10 s: a child process that Ctrl-C ends.
STAND_IN = """
import http.server, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("own", [True, False])
def test_the_temporary_server_is_out_of_reach_of_ctrl_c(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal, and a notebook's kernel, send it to the whole process group, while a training still saves."""

    def start(server: SubprocessASGIServer) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", STAND_IN, str(server.port)], stderr=subprocess.DEVNULL)

    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})  # one that runs would be taken
    monkeypatch.setattr(SubprocessASGIServer, "_run_uvicorn_command", start)
    monkeypatch.setattr(prefect_context, "get_client", get_client)
    if own:
        compat.shield_temporary_server()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    server = SubprocessASGIServer()
    try:
        with temporary_settings({PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: True}):
            prefect_context.SyncClientContext()
            waits = get_current_settings().server.ephemeral.startup_timeout_seconds
        process = server.server_process
        assert (waits >= compat.TEMPORARY_SERVER_SECONDS) == own
        assert process is not None and signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        process.send_signal(signal.SIGINT)
        if own:
            assert httpx.get(f"{server.address}/api/health", trust_env=False).status_code == 200
        else:
            process.wait(60)
    finally:
        server.stop()


def test_settings_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PREFECT_API_URL.value()
    with monkeypatch.context() as patch:
        patch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
        compat.refresh_settings(heartbeats=False)
        assert PREFECT_API_URL.value() == "http://127.0.0.1:9/api"
        assert FlowRunEngine(flow=Flow(lambda: None, name="one")).heartbeat_seconds is None
    compat.refresh_settings()
    assert PREFECT_API_URL.value() == before


def test_a_worker_names_the_flow_run_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compat.FLOW_RUN_ID, raising=False)
    assert compat.started_flow_run() is None and flow_run.id is None
    monkeypatch.setenv(compat.FLOW_RUN_ID, str(FLOW_RUN))
    assert compat.started_flow_run() == flow_run.id == str(FLOW_RUN)
