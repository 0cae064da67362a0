"""Errors of requests, in the formats of both APIs."""

import logging
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from gpt2train.data.chat_template import NO_TEMPLATE
from gpt2train.errors import RunError, UserError

if TYPE_CHECKING:
    from fastapi.exceptions import RequestValidationError

log = logging.getLogger(__name__)

RETRY = {"Retry-After": "1"}
CONTEXT_EXCEEDED = "context_length_exceeded"  # OpenAI's code, upon which clients shorten the prompt
OPENAI_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


class ApiError(Exception):
    """Refused request: HTTP status, one line with the remedy, the wrong field if it is one, headers, OpenAI's code."""

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers, self.code = status, message, field, headers, code


def wrong_field(field: str, problem: str, code: str | None = None) -> ApiError:
    """Return the error of a wrong field."""
    return ApiError(400, f"{field}: {problem}", field, code=code)


def late(seconds: float) -> ApiError:
    """Return the error of a request that was not done in time."""
    return ApiError(504, f"not done within {seconds:g} s, the limit of this server")


def error_body(
    path: str, status: int, message: str, field: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the body of an error: OpenAI's format under /v1, `{"message": …}` elsewhere."""
    if not path.startswith("/v1"):
        return {"message": message}
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def error_response(path: str, refusal: ApiError) -> JSONResponse:
    """Return the response to a refused request."""
    body = error_body(path, refusal.status, refusal.message, refusal.field, refusal.code)
    return JSONResponse(body, refusal.status, headers=dict(refusal.headers or {}))


def from_validation_error(error: "RequestValidationError") -> ApiError:
    """Convert pydantic's first error to one line that names the field; the value sent is not repeated."""
    first = error.errors()[0]
    location = list(first["loc"][1:])  # the first is "body" or "query"
    if first["type"] == "json_invalid":
        place = _line_and_column(error.body, location[0])
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']} {place}")
    if first["type"] == "value_error" and not location:  # a check of several fields; our message begins with one
        message = str(first["ctx"]["error"])
        return ApiError(400, message, message.partition(":")[0])
    if not location:
        return ApiError(400, "send a JSON object with the header Content-Type: application/json")
    field = printable_name(location[0])
    path = field + "".join(f"[{key}]" if isinstance(key, int) else f".{printable_name(key)}" for key in location[1:])
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field {path!r}", field)
    if first["type"] == "missing":
        return ApiError(400, f"{path} is required", field)
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message[:1].lower()}{message[1:]}", field)


def from_job_error(error: BaseException) -> ApiError:
    """Convert an error with which a job ended; only our own messages, which repeat no prompt, are sent or logged."""
    if isinstance(error, UserError | RunError):
        return ApiError(400 if isinstance(error, UserError) else 500, str(error))
    log.error("request failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return ApiError(500, "internal server error; see the server's log")


def from_http_exception(error: HTTPException, path: str, has_chat: bool) -> ApiError:
    """Convert an error of the framework: unknown path, wrong method, or an unreadable body without a position."""
    if error.status_code == 400:
        return ApiError(400, f"the body is not valid JSON: {_unread(error.__cause__)}")
    if error.status_code == 404:
        chat = any(word in path for word in ("chat", "responses", "messages"))
        why = (
            f"chat is not supported, this model continues texts: it has {NO_TEMPLATE}; "
            if chat and not has_chat
            else ""
        )
        posts = "POST /v1/completions" + " and POST /v1/chat/completions" * has_chat
        paths = f"GET /v1/models and {posts}" if path.startswith("/v1") else "PUT /api and those in /docs"
        return ApiError(404, f"{why}no such path; the paths are {paths}")
    return ApiError(error.status_code, str(error.detail), headers=error.headers)


def _unread(cause: BaseException | None) -> str:
    """Return the reason for which a body could not be read."""
    if isinstance(cause, UnicodeDecodeError):
        return f"byte {cause.start} is not {cause.encoding.upper()}"
    if isinstance(cause, RecursionError):
        return "it is nested too deeply"
    if isinstance(cause, ValueError):  # Python's limit of digits, 4,300
        return "a number has too many digits"
    return "it cannot be read"


def _line_and_column(text: Any, position: Any) -> str:
    """Return line and column, from 1, of a position in the text of a request."""
    before = str(text)[: int(position)]
    return f"at line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def printable_name(key: Any) -> str:
    """Return the name of a field, truncated and without unprintable characters."""
    return "".join(character if character.isprintable() else "?" for character in str(key)[:100])
