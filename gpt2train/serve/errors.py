"""What goes wrong with a request, and how each of the two interfaces says so."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

OPENAI_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


class Refusal(Exception):
    """A request that gets no answer: the status, one line that says what would be right, and the field it is about."""

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, headers


def error_body(path: str, status: int, message: str, field: str | None = None) -> dict[str, Any]:
    """An error as the clients of a path expect it: OpenAI's shape under /v1, `{"message": …}` elsewhere."""
    if not path.startswith("/v1"):
        return {"message": message}
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": status}}


def error_response(path: str, refusal: Refusal) -> JSONResponse:
    """The answer to a refused request."""
    body = error_body(path, refusal.status, refusal.message, refusal.field)
    return JSONResponse(body, refusal.status, headers=dict(refusal.headers or {}))


def of_validation(errors: Sequence[Any]) -> Refusal:
    """What pydantic found wrong first, as one line that names the field. What was sent is not repeated."""
    first = errors[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return Refusal(400, f"the body is not valid JSON: {first['ctx']['error']}")
    if first["type"] == "value_error" and not where:  # of fields together; our own message begins with one
        message = str(first["ctx"]["error"])
        return Refusal(400, message, message.partition(":")[0])
    if not where:
        return Refusal(400, "send a JSON object with the header Content-Type: application/json")
    field = where[0]
    if first["type"] == "extra_forbidden":
        return Refusal(400, f"unknown field {field!r}", field)
    if first["type"] == "missing":
        return Refusal(400, f"{field} is required", field)
    message = first["msg"].removeprefix("Value error, ")
    return Refusal(400, f"{field}: {message[:1].lower()}{message[1:]}", field)
