"""Interactive client that asks for a prompt and a number of tokens and shows the server's answer.

It uses `PUT /api`, so it works with any server that has Megatron-LM's API. Input is read as text and as a number and
never executed.
"""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from gpt2train.command_line import printable
from gpt2train.errors import RunError, UserError
from gpt2train.serve.settings import KEY_VARIABLE

ASK_PROMPT = "Enter prompt: "
ASK_TOKENS = "Enter number of tokens to generate: "
ANSWER = "Megatron Response: "  # the line of Megatron-LM's client, which its tutorials show
REACH_SECONDS = 10.0
ANSWER_SECONDS = 600.0  # the server has its own deadline; this timeout is for a dead connection

# No proxy, since the address is that of the user's own server. No redirects, which would send the key to another host.
_OPENER = urllib.request.OpenerDirector()
for _handler in (urllib.request.HTTPHandler, urllib.request.HTTPSHandler, urllib.request.HTTPDefaultErrorHandler):
    _OPENER.add_handler(_handler())
_OPENER.add_handler(urllib.request.HTTPErrorProcessor())


def talk(address: str, read: Callable[[str], str] = input, write: Callable[[str], None] = print) -> None:
    """Read prompts with `read` and `write` their completions until the input ends (Ctrl-D) or Ctrl-C is pressed.

    Raises:
        UserError: the address is invalid.
        RunError: the server does not respond at the start.
    """
    base, key = base_of(address), os.environ.get(KEY_VARIABLE)
    _reach(base)
    try:
        while True:
            prompt = read(ASK_PROMPT)
            tokens = _ask_number(read, write)
            try:
                answer = printable(complete(base, prompt, tokens, key))
                write(f"{ANSWER}\n{answer}")
            except RunError as error:
                write(printable(f"error: {error}"))
    except (EOFError, KeyboardInterrupt):
        write("")


def complete(base: str, prompt: str, tokens: int, key: str | None = None) -> str:
    """Return the prompt with its continuation from the server at a URL, with its API key if it needs one.

    Raises:
        RunError: the server cannot be reached, or refuses the request; then the message is the server's own.
    """
    body = json.dumps({"prompts": [prompt], "tokens_to_generate": tokens}).encode()
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{base}/api", body, headers, method="PUT")
    try:
        with _OPENER.open(request, timeout=ANSWER_SECONDS) as response:
            return _text(response.read())
    except urllib.error.HTTPError as error:
        with error:
            raise RunError(_refusal(error.code, error.read())) from error
    except (OSError, HTTPException) as error:
        raise RunError(f"no answer from {base}: {_reason(error)}; is the server still running?") from error


def base_of(address: str) -> str:
    """Return the URL of a server, `http://HOST:PORT`, from an address that was typed.

    Raises:
        UserError: the address has no host or no port, or a scheme other than http and https.
    """
    remedy = f"{address!r} is not the address of a server; give HOST:PORT, for example 127.0.0.1:5000"
    try:
        parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError as error:
        raise UserError(remedy) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or (port is None and "://" not in address):
        raise UserError(remedy)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/api')}"


def _reach(base: str) -> None:
    try:
        with _OPENER.open(f"{base}/health", timeout=REACH_SECONDS) as response:
            response.read()
    except urllib.error.HTTPError as error:
        error.close()  # a server responds; other servers with this API have no /health
    except (OSError, HTTPException) as error:
        remedy = "check the address, or start one: gpt2train serve --model DIR"
        raise RunError(f"no server responds at {base}: {_reason(error)}; {remedy}") from error


def _ask_number(read: Callable[[str], str], write: Callable[[str], None]) -> int:
    while True:
        typed = read(ASK_TOKENS).strip()
        if typed.isascii() and typed.isdigit() and 0 < len(typed) < 10 and int(typed) > 0:
            return int(typed)
        write(f"{typed!r} is not a number of tokens; type a whole number of 1 or more")


def _text(raw: bytes) -> str:
    answer = _json(raw)
    if isinstance(answer, dict) and isinstance(answer.get("text"), list) and answer["text"]:
        return str(answer["text"][0])
    # Megatron-LM's own server refuses some requests with a bare string and status 200.
    refusal = answer if isinstance(answer, str) else "the server's answer has no text; is it another kind of server?"
    raise RunError(refusal)


def _refusal(status: int, raw: bytes) -> str:
    answer = _json(raw)
    if isinstance(answer, dict) and isinstance(answer.get("message"), str):
        return f"{answer['message']} (HTTP {status})"
    return f"the server refused with HTTP {status}" + (f": {answer}" if isinstance(answer, str) else "")


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or cause) or type(cause).__name__
