"""Rendezvous of the launchers of a job, and the key-value stores of its ranks.

| machines | store of the launchers               | store of the ranks                 |
| one      | in the launcher's memory             | a file in a folder of mode 0700    |
| several  | TCP, on the address of the endpoint  | TCP, on the address of the machine |

torch by itself opens both as TCP ports on all interfaces, even on a single machine. They have no authentication, and
its launchers unpickle the state of the rendezvous, which any client can write: access to the port allows code execution
in the launcher. Here a single machine opens no port, several machines open it only on their common network, and the
state is unpickled only if it consists of the types that torch stores there.
"""

import contextlib
import os
import pickle
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from io import BytesIO
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import Token, create_handler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from gpt2train.compat import torch_elastic
from gpt2train.errors import UserError
from gpt2train.launch.process_env import STORE, is_loopback
from gpt2train.launch.rank_store import serve_store

try:
    import fcntl
except ImportError:  # Windows, where torchrun does not start several processes
    fcntl = None  # type: ignore[assignment]

FOLDER_PREFIX = "gpt2train-ranks-"  # prefix of folders with the stores of ranks
MIN_AGE_SECONDS = 60.0  # a newer folder may not be locked yet
DEFAULT_PORT = 29400  # torchrun's default for an endpoint without a port
READ_SECONDS = 60  # torchrun's default timeout for a request to the store
MAX_STATE_BYTES = 16 << 20  # limit for the rendezvous state, which takes about 100 bytes per machine
STATE_TYPES: dict[str, type] = {
    "round": int,
    "complete": bool,
    "closed": bool,
    "participants": dict,
    "wait_list": set,
    "redundancy_list": set,
    "last_heartbeats": dict,
}
DATES = {one.__name__: one for one in (datetime, timedelta, timezone)}


@contextlib.contextmanager
def rendezvous(parameters: RendezvousParameters) -> Iterator[RendezvousHandler]:
    """Create the rendezvous handler of a launcher from torchrun's parameters, and shut it down at the end.

    With `is_host` this machine opens the port, by default the machine with the endpoint's address does.

    Raises:
        UserError: the port is taken.
        torch.distributed.DistError: the machine that opens the port does not answer.
    """
    with contextlib.ExitStack() as stack:
        os.environ.pop(STORE, None)  # set by an outer launcher
        if parameters.max_nodes == 1:
            os.environ[STORE] = stack.enter_context(_ranks_folder())
            # It waits for no other launcher; the ranks use the folder and neither this store nor its address.
            handler: RendezvousHandler
            handler = local = StaticTCPRendezvous("localhost", 0, 0, 1, parameters.run_id, READ_SECONDS)
            torch_elastic.use_store(local, dist.HashStore())
        elif parameters.backend == "c10d":
            handler = _dynamic(parameters)
        elif parameters.backend == "static":
            handler = get_rendezvous_handler(parameters)
            assert isinstance(handler, StaticTCPRendezvous)
            if handler.rank == 0:
                torch_elastic.use_store(handler, serve_store(handler.master_addr, handler.master_port, handler.timeout))
        else:
            handler = get_rendezvous_handler(parameters)
        stack.callback(handler.shutdown)
        yield handler


@contextlib.contextmanager
def _ranks_folder() -> Iterator[str]:
    """Create a temporary folder of mode 0700, locked by this process, and remove those of killed launchers."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, a link, already removed, or of a running launcher
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > MIN_AGE_SECONDS:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)
            finally:
                os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(descriptor)


class CheckedBackend(C10dRendezvousBackend):
    """torch's rendezvous backend that returns a state only if unpickling it runs no code."""

    def get_state(self) -> tuple[bytes, Token] | None:
        """See base class."""
        found = super().get_state()
        return None if found is None else (check_state(found[0]), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """See base class."""
        found = super().set_state(state, token)
        return None if found is None else (check_state(found[0]), *found[1:])


def check_state(state: bytes) -> bytes:
    """Check that a pickled rendezvous state consists of torch's own types only, and return it unchanged.

    Raises:
        RendezvousStateError: it contains another type.
    """
    try:
        if len(state) > MAX_STATE_BYTES:
            raise pickle.UnpicklingError(f"{len(state)} bytes")
        found = _StateUnpickler(BytesIO(state)).load()
        if type(found).__name__ != torch_elastic.STATE_CLASS:
            raise pickle.UnpicklingError(f"a {type(found).__name__}")
        if wrong := [name for name, kind in STATE_TYPES.items() if type(getattr(found, name)) is not kind]:
            raise pickle.UnpicklingError(f"{wrong[0]} has another type")
    except Exception as error:  # unpickling hostile bytes can raise any exception
        raise RendezvousStateError(
            "the state of the rendezvous was not written by torch's launchers; is its port open to other machines than "
            f"the job's? ({type(error).__name__}: {error})"
        ) from error
    return state


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == torch_elastic.STATE_MODULE and name in torch_elastic.STATE_CLASSES:
            return getattr(sys.modules[torch_elastic.STATE_MODULE], name)
        if module == "datetime" and name in DATES:
            return DATES[name]
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _dynamic(parameters: RendezvousParameters) -> RendezvousHandler:
    """Create the handler of an elastic job on several machines, with a store at the endpoint."""
    host, port = parse_rendezvous_endpoint(parameters.endpoint, DEFAULT_PORT)
    limit = timedelta(seconds=parameters.get_as_int("read_timeout", READ_SECONDS) or READ_SECONDS)
    if parameters.local_addr is None and is_loopback(host):
        parameters.local_addr = host  # all launchers are on this machine, and so is the store of their ranks
    store = None
    hosts = parameters.get_as_bool("is_host")
    if hosts or (hosts is None and (_is_local_host(host) or torch_elastic.is_machine_host_name(host))):
        try:
            store = serve_store(host, port, limit, parameters.local_addr)
        except UserError:
            if hosts:
                raise  # otherwise another launcher on this machine has opened it
    if store is None:
        store = dist.TCPStore(host, port, None, is_master=False, timeout=limit, wait_for_workers=False)
    handler = create_handler(store, CheckedBackend(store, parameters.run_id), parameters)
    torch_elastic.open_rank_stores_by(handler, lambda address, port: serve_store(address, port, limit))
    return handler


def _is_local_host(host: str) -> bool:
    """Return True if a name resolves to an address of this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False
