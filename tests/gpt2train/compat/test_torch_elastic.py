"""Private parts of torch's elastic launcher against the plain way."""

import importlib
import io
import pickle
import signal
import socket
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server import RunResult, WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from gpt2train.compat.torch_elastic import (
    STATE_CLASS,
    STATE_CLASSES,
    STATE_MODULE,
    ObservedAgent,
    is_machine_host_name,
    launch_config,
    open_rank_stores_by,
    parse_torchrun,
    use_store,
)

TORCHRUN = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "job"]


class Recorder(ObservedAgent):
    seen: list[RunResult]

    def observe(self, result: RunResult, spec: WorkerSpec) -> None:
        self.seen.append(result)


def handler_of(parameters: RendezvousParameters) -> DynamicRendezvousHandler:
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


def parameters(host: str = "localhost") -> RendezvousParameters:
    return RendezvousParameters("c10d", f"{host}:0", "job", 1, 1, local_addr="127.0.0.1", is_host=True)


@pytest.mark.parametrize(("code", "state"), [("", "SUCCEEDED"), ("raise SystemExit(3)", "FAILED")])
def test_the_agent_sees_what_torchs_returns(code: str, state: str) -> None:
    config, command, rest = launch_config(parse_torchrun([*TORCHRUN, "--no-python", sys.executable, "-c", code]))
    assert (config.nproc_per_node, config.rdzv_backend, command) == (2, "c10d", sys.executable)
    assert rest == ["-c", code]
    spec = WorkerSpec("r", 2, handler_of(parameters()), entrypoint=command, args=tuple(rest), monitor_interval=0.05)
    agent = Recorder(config, spec)
    agent.seen = []
    result = agent.run()
    assert result.state.name == agent.seen[-1].state.name == state
    # The agent may end the second process before it has exited on its own.
    assert {failure.exitcode for failure in agent.seen[-1].failures.values()} - {-signal.SIGTERM} <= {3}


def test_the_state_of_the_rendezvous_is_of_these_classes() -> None:
    module = importlib.import_module(STATE_MODULE)
    state, node = (getattr(module, name) for name in STATE_CLASSES)
    found: set[tuple[str, str]] = set()
    filled = state()
    filled.participants[node("host", 1, 0)] = 0

    class Unpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]  # the one in Python
        def find_class(self, module: str, name: str) -> object:
            found.add((module, name))
            return super().find_class(module, name)

    assert type(Unpickler(io.BytesIO(pickle.dumps(filled))).load()).__name__ == STATE_CLASS
    assert {name for module, name in found if module == STATE_MODULE} == set(STATE_CLASSES)


def test_names_of_this_machine() -> None:
    assert is_machine_host_name("localhost")
    assert is_machine_host_name(socket.gethostname())
    assert not is_machine_host_name("192.0.2.1")


def test_a_static_rendezvous_uses_the_open_store() -> None:
    store = dist.HashStore()
    handler = StaticTCPRendezvous("127.0.0.1", 1, 0, 1, "job", 5)
    use_store(handler, store)
    handler.next_rendezvous().store.set("key", "value")
    assert store.num_keys() >= 1


def test_the_stores_of_ranks_are_opened_by_the_function() -> None:
    opened = []

    def serve(address: str, port: int) -> dist.TCPStore:
        opened.append(port)
        return dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), wait_for_workers=False)

    handler = handler_of(parameters())
    open_rank_stores_by(handler, serve)
    handler.next_rendezvous()
    assert len(opened) == 1
    handler.shutdown()
