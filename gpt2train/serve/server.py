"""HTTP server of a decoder, from the listening socket to the shutdown by a signal."""

import functools
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import RunError
from gpt2train.inference.decoder import Decoder
from gpt2train.serve.app import make_app
from gpt2train.serve.batcher import Batcher
from gpt2train.serve.connection import ConnectionServer, LimitedConnection, connection_limits
from gpt2train.serve.hosts import allowed_hosts
from gpt2train.serve.service import Service, open_tracer
from gpt2train.serve.settings import ServeSettings


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
    key, tracer = settings.read_key(), open_tracer(trace) if trace else None
    listener = settings.bind()
    batcher = Batcher(decoder, settings.max_queued, settings.prefill_tokens)
    hosts = allowed_hosts(listener.getsockname()[0], settings.host, settings.allowed_host)
    service = Service(
        batcher, tokenizer, settings, settings.name or name, key, hosts, tracer=tracer, stop_tokens=stop_tokens
    )
    tokenizer.source = service.name  # type: ignore[attr-defined] # its errors reach clients, which see no paths
    maximum, backlog = connection_limits(settings.max_connections)
    listener.listen(backlog)  # clients can connect before the server answers
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
