"""Settings of the server, apart from its code so that `--help` and the refusal of a setting do not load torch."""

import os
import socket
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gpt2train.errors import UserError, not_utf8
from gpt2train.settings import Settings

KEY_VARIABLE = "GPT2TRAIN_API_KEY"  # environment variable with the key, for server and client

HostName = Annotated[str, Field(pattern=r"^(\*|[^\s:/@*]+|\[[0-9A-Fa-f:.]+\])$")]
"""Host name or address, without scheme and port."""


class ServeSettings(Settings):
    """Address and limits of the server, and the defaults of requests to `/api`."""

    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0 accepts connections from other machines; set a key then."""
    port: int = Field(5000, ge=0, le=65535)
    """Port to listen at; 0 takes a free one, which the first line of output names."""
    allowed_host: tuple[HostName, ...] = ()
    """Name allowed in the Host and Origin headers of requests, in addition to localhost and the listening address; `*`
    allows any. Give the option once per name."""
    name: str | None = None
    """Name of the model for clients. By default the name of the model's folder, or of its parent if the folder is
    called `model`. The name `model` is always accepted."""
    max_batch_size: int = Field(32, ge=1, le=4096)
    """Maximum number of sequences in a batch; the KV cache takes 2 x layers x hidden x context numbers for each."""
    max_queued: int = Field(256, ge=0)
    """Maximum number of waiting sequences; beyond that the answer is 503 with Retry-After."""
    prefill_tokens: int = Field(512, ge=1)
    """Maximum number of prompt tokens, with padding, read between two steps; one prompt is always read. Bounds the
    delay that long prompts cause to other sequences."""
    deadline: float = Field(120.0, gt=0)
    """Seconds from the arrival of a request until it is aborted (504)."""
    shutdown_timeout: float = Field(30.0, ge=1)
    """Seconds that running requests get to finish after SIGTERM."""
    max_sequences: int = Field(128, ge=1)
    """Maximum number of sequences of a request: prompts times `n`."""
    max_tokens: int = Field(131_072, ge=1)
    """Maximum number of tokens of a request: prompts and tokens to generate of all its sequences."""
    max_api_tokens: int = Field(12_000, ge=1)
    """Maximum of prompts x (longest prompt + tokens_to_generate) in a request to /api, as Megatron-LM's
    --max-tokens-to-oom."""
    max_body: int = Field(8 * 2**20, ge=1)
    """Maximum size of a request's body in bytes."""
    body_seconds: float = Field(30.0, gt=0)
    """Time limit in seconds for the arrival of a body."""
    max_buffered: int = Field(64 * 2**20, ge=1)
    """Maximum size in bytes of all bodies in memory; beyond that the answer is 503 with Retry-After."""
    max_connections: int = Field(1000, ge=1)
    """Maximum number of open connections, less where the process may open fewer files (`ulimit -n`). Beyond that the
    one that has waited longest for its client is closed."""
    head_seconds: float = Field(20.0, gt=0)
    """Time limit in seconds for the arrival of a request's head, and for the first bytes of a connection."""
    key_file: Path | None = None
    """File with the key that clients send as `Authorization: Bearer KEY`. The environment variable GPT2TRAIN_API_KEY is
    an alternative. Without either, no key is required."""
    tokens_to_generate: int = Field(64, ge=0)
    """Tokens to generate per prompt; default of /api."""
    temperature: float = Field(1.0, gt=0, le=100)
    """Divisor of the logits; default of /api."""
    top_k: int = Field(0, ge=0, le=1000)
    """Sample among the k most likely tokens, 0 means all; default of /api."""
    top_p: float = Field(0.0, ge=0, le=1)
    """Sample among the smallest set of tokens whose probabilities add up to this, 0 means all; default of /api."""

    def read_key(self) -> str | None:
        """Return the key that clients must send, from the key file or the environment, if there is one.

        Raises:
            UserError: the file cannot be read or is empty.
        """
        if self.key_file is None:
            return os.environ.get(KEY_VARIABLE) or None
        try:
            key = self.key_file.read_text(encoding="utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise UserError(f"--key-file: {self.key_file}: {not_utf8(error)}") from error
        except OSError as error:
            raise UserError(f"--key-file: cannot read {self.key_file}: {error}; check the path") from error
        if not key:
            raise UserError(f"--key-file: {self.key_file} is empty; write the key into it")
        return key

    def bind(self) -> socket.socket:
        """Return a socket that is bound to the address, and does not listen yet.

        Raises:
            UserError: the address is in use, or does not belong to this machine.
        """
        try:
            family, *_, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            # asyncio disables Nagle's algorithm only if the socket's protocol is given. With it on, a small response
            # waits 40 ms for the client's delayed acknowledgement.
            bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            remedy = "choose another --host or --port, 0 takes a free port"
            raise UserError(f"cannot listen at {self.host}:{self.port}: {error.strerror}; {remedy}") from error
        return bound
