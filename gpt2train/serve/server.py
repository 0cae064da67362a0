"""HTTP server of a decoder, from the listening socket to the shutdown by a signal."""

import functools
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import RunError, UserError
from gpt2train.inference.decoder import Decoder
from gpt2train.serve.app import make_app
from gpt2train.serve.batcher import Batcher
from gpt2train.serve.connection import BACKLOG, ConnectionServer, LimitedConnection, connection_limits
from gpt2train.serve.hosts import allowed_hosts
from gpt2train.serve.service import Service, open_tracer
from gpt2train.serve.settings import KEY_VARIABLE, ServeSettings


@dataclass(frozen=True)
class Server:
    """Server with a bound socket, before it answers requests."""

    service: Service
    http: uvicorn.Server
    listener: socket.socket

    @property
    def address(self) -> str:
        """URL of the server, `http://HOST:PORT`, with the actual port."""
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Answer requests until a signal, or until `http.should_exit` is set from another thread.

        Raises:
            RunError: the decoder failed.
        """
        batcher = self.service.batcher
        batcher.start()
        try:
            self.http.run(sockets=[self.listener])
        finally:
            batcher.close()
        if batcher.failure:
            raise RunError(f"the decoder failed: {type(batcher.failure).__name__}: {batcher.failure}")


def prepare(
    decoder: Decoder,
    tokenizer: Tokenizer,
    settings: ServeSettings,
    name: str,
    trace: Path | None = None,
    stop_tokens: tuple[int, ...] = (),
) -> Server:
    """Bind the address and create the server of a decoder without rows.

    Args:
        decoder: model with a free batch.
        tokenizer: tokenizer of the model.
        settings: address and limits.
        name: name of the model for clients; `settings.name` overrides it.
        trace: run folder, output folder of the data steps or prefix of token files that /v1/trace searches.
        stop_tokens: ids that end a continuation, besides the token that ends a document.

    Raises:
        UserError: the address cannot be bound, the key file cannot be read, or there is no index to trace texts in.
    """
    key, tracer = read_key(settings), open_tracer(trace) if trace else None
    listener = listen(settings.host, settings.port)
    batcher = Batcher(decoder, settings.max_queued, settings.prefill_tokens)
    hosts = allowed_hosts(listener.getsockname()[0], settings.host, settings.allowed_host)
    service = Service(
        batcher, tokenizer, settings, settings.name or name, key, hosts, tracer=tracer, stop_tokens=stop_tokens
    )
    maximum, backlog = connection_limits(settings.max_connections)
    connection = functools.partial(LimitedConnection, settings=settings, maximum=maximum)
    http = ConnectionServer(
        uvicorn.Config(
            make_app(service),
            http=connection,  # type: ignore[arg-type] # called, as a class would be
            ws="none",
            log_level="error",  # any client could trigger a warning line with each request
            access_log=False,
            server_header=False,
            lifespan="off",
            backlog=backlog,
            timeout_graceful_shutdown=round(settings.shutdown_timeout),
        )
    )
    batcher.on_failure = functools.partial(setattr, http, "should_exit", True)
    return Server(service, http, listener)


def read_key(settings: ServeSettings) -> str | None:
    """Return the key that clients must send, from the key file or the environment, if there is one.

    Raises:
        UserError: the file cannot be read or is empty.
    """
    if settings.key_file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = Path(settings.key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--key-file: cannot read {settings.key_file}: {error}; check the path") from error
    if not key:
        raise UserError(f"--key-file: {settings.key_file} is empty; write the key into it")
    return key


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        UserError: the address is in use, or does not belong to this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio disables Nagle's algorithm only if the socket's protocol is given. With it on, a small response waits
        # 40 ms for the client's delayed acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # clients can connect before the server answers
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another --host or --port, 0 takes a free port"
        ) from error
    return listener
