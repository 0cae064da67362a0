"""Serve a decoder until a signal says to stop."""

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from tokenizers import Tokenizer

from gpt2train.errors import RunError, UserError
from gpt2train.generate.decoder import Decoder
from gpt2train.serve.app import make_app
from gpt2train.serve.batcher import Batcher
from gpt2train.serve.service import Service
from gpt2train.serve.settings import ServeSettings

KEY = "GPT2TRAIN_API_KEY"
BACKLOG = 2048  # uvicorn's own


@dataclass(frozen=True)
class Server:
    """A server that listens and does not answer yet."""

    service: Service
    http: uvicorn.Server
    listener: socket.socket

    @property
    def address(self) -> str:
        """http://HOST:PORT, the port that was really taken."""
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


def prepare(decoder: Decoder, tokenizer: Tokenizer, settings: ServeSettings, name: str = "gpt2train") -> Server:
    """Bind the address, before anybody waits for a model that cannot be reached.

    Raises:
        UserError: the address cannot be listened at, or the key file cannot be read.
    """
    key = read_key(settings)
    listener = listen(settings.host, settings.port)
    batcher = Batcher(decoder, settings.queue, settings.prefill_tokens)
    service = Service(batcher, tokenizer, settings, settings.name or name, key)
    http = uvicorn.Server(
        uvicorn.Config(
            make_app(service),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=round(settings.grace),
        )
    )

    def end() -> None:
        http.should_exit = True

    batcher.on_failure = end
    return Server(service, http, listener)


def serve(decoder: Decoder, tokenizer: Tokenizer, settings: ServeSettings, name: str = "gpt2train") -> None:
    """Answer requests until SIGTERM or SIGINT; what runs then gets `settings.grace` seconds to finish.

    Args:
        decoder: empty; a thread of the batcher drives it from now on, nobody else may.

    Raises:
        UserError: the address cannot be listened at, or the key file cannot be read.
        RunError: the decoder failed.
    """
    server = prepare(decoder, tokenizer, settings, name)
    # uvicorn raises the signal once more when it is done, so that whoever was there before gets it too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    key = ", with a key" if server.service.key else ""
    print(f"serving {server.service.name} at {server.address}{key}", flush=True)
    server.run()


def read_key(settings: ServeSettings) -> str | None:
    """The key that clients must send, from the file or the environment.

    Raises:
        UserError: the file cannot be read or is empty.
    """
    if settings.key_file is None:
        return os.environ.get(KEY) or None
    try:
        key = Path(settings.key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--key-file: cannot read {settings.key_file}: {error}; check the path") from error
    if not key:
        raise UserError(f"--key-file: {settings.key_file} is empty; write the key into it")
    return key


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address, before anything costly begins.

    Raises:
        UserError: it is taken, or not an address of this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off where the protocol is named, and only there. With it on, a small answer
        # waits 40 ms for the client's delayed acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # who reads the address may connect at once, though nobody answers yet
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another --host or --port, 0 takes a free port"
        ) from error
    return listener
