"""What the server allows and whom it lets in: the settings alone, so that the command can show them without torch."""

from pathlib import Path

from pydantic import Field

from gpt2train.settings import Settings


class ServeSettings(Settings):
    """Where the server listens and what it allows. What a request leaves out of `/api` is taken from here."""

    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0 lets other machines in; set a key then."""
    port: int = Field(5000, ge=0, le=65535)
    """Port to listen at; 0 takes a free one, which the first line of output names."""
    name: str | None = None
    """Name of the model for clients; the folder's name where not given."""
    rows: int = Field(32, ge=1, le=4096)
    """Sequences that are continued at the same time; the cache takes 2 x layers x hidden x context numbers for each."""
    queue: int = Field(256, ge=0)
    """Sequences that may wait for a row; beyond that the answer is 503 with Retry-After."""
    prefill_tokens: int = Field(512, ge=1)
    """Prompt tokens read between two steps, padding included, and one prompt at least: long prompts hold up others by
    no more than that."""
    deadline: float = Field(120.0, gt=0)
    """Seconds from arrival until a request is given up (504)."""
    grace: float = Field(30.0, ge=1)
    """Seconds that running requests get to finish after SIGTERM."""
    max_sequences: int = Field(128, ge=1)
    """Prompts of a request, times `n`."""
    max_tokens: int = Field(131_072, ge=1)
    """Tokens of a request: of all its sequences, prompts and what is to be generated."""
    max_api_tokens: int = Field(12_000, ge=1)
    """The same for /api: prompts x (longest prompt + tokens_to_generate), Megatron-LM's --max-tokens-to-oom."""
    max_body: int = Field(8 * 2**20, ge=1)
    """Bytes of a request's body."""
    body_seconds: float = Field(30.0, gt=0)
    """Seconds that a body may take to arrive."""
    key_file: Path | None = None
    """File with the key that clients send as `Authorization: Bearer KEY`; GPT2TRAIN_API_KEY in the environment does
    the same. No key is asked for where neither is given."""
    tokens_to_generate: int = Field(64, ge=0)
    """Default of /api."""
    temperature: float = Field(1.0, gt=0, le=100)
    """Default of /api."""
    top_k: int = Field(0, ge=0, le=1000)
    """Default of /api; 0 means all."""
    top_p: float = Field(0.0, ge=0, le=1)
    """Default of /api; 0 means all."""
