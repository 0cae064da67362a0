"""OpenAPI 3.1 description of the API, with the limits of the served model and of the server's settings.

FastAPI's generated description would declare 422 instead of 400, list no errors, and write integer bounds as floats.
"""

import functools
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, TypeAdapter

from gpt2train import __version__
from gpt2train.runs.text_trace import PlaceDetails
from gpt2train.serve.chat import PATH, ChatRequest
from gpt2train.serve.completions import CompletionRequest
from gpt2train.serve.errors import error_body
from gpt2train.serve.megatron import ApiRequest
from gpt2train.serve.response_models import (
    Beams,
    ChatCompletion,
    Completion,
    Health,
    Message,
    Model,
    ModelList,
    OpenAIError,
    Texts,
    Traced,
)
from gpt2train.serve.service import Service
from gpt2train.serve.trace import MAX_PLACES, MAX_TEXT

MODELS = (Beams, Completion, CompletionRequest, ApiRequest, Health, Message, Model, ModelList, OpenAIError, Texts)
CHAT_MODELS = (ChatCompletion, ChatRequest)
TRACE_MODELS = (PlaceDetails, Traced)
ERRORS = {
    400: "The request is not valid; the message names the field and the remedy.",
    401: "The API key is missing or wrong.",
    403: "The request comes from a web page of another host (Origin header).",
    404: "No model of that name is served here.",
    405: "The path does not support this method; `Allow` lists the supported methods.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is compressed.",
    421: "The Host header names another host; `--allowed-host` allows more.",
    500: "Internal server error.",
    503: "The queue is full, the server is shutting down, or pages were removed from the tokens it searches.",
    504: "The answer was not ready before the deadline.",
}
EXAMPLES = {
    400: ("max_tokens: input should be a valid integer", "max_tokens"),
    401: ("send the key of this server as Authorization: Bearer KEY", None),
    404: ("no model of that name is served here; its name is 'small'", "model"),
    413: ("the body is larger than 8388608 bytes", None),
    503: ("the queue is full; try again in a moment", None),
    504: ("not done within 120 s, the limit of this server", None),
}
HEADERS = {401: "WWW-Authenticate", 405: "Allow", 503: "Retry-After"}
ABOUT = {
    "api": "Continue prompts, as Megatron-LM's text generation server does.",
    "models": "List the served model.",
    "model": "Describe the served model.",
    "chat_completions": "Answer a conversation. With `stream`, the response is server-sent events; the last one is "
    "`[DONE]` or an error.",
    "completions": "Continue prompts. With `stream`, the response is server-sent events; the last one is `[DONE]` or "
    "an error.",
    "trace": "Find the longest spans of a text that occur verbatim in the training tokens.",
    "place": "Describe a place of the training tokens: page, text around it, data steps and training steps.",
    "health": "200 while requests are accepted, else 503: the model failed, the server is shutting down, or a step "
    "hangs.",
    "metrics": "Metrics for Prometheus.",
}
ALWAYS = (400, 403, 405, 408, 421, 500)
WITH_BODY = (*ALWAYS, 413, 415, 503, 504)


def _operation(
    service: Service,
    path: str,
    name: str,
    content: dict[str, Any],
    errors: tuple[int, ...] = ALWAYS,
    body: type[BaseModel] | None = None,
) -> dict[str, Any]:
    guarded = service.key is not None and path != "/health"
    about = ABOUT.get(name, ABOUT["api"])
    found: dict[str, Any] = {"operationId": name, "summary": name, "description": about}
    if body:
        found["requestBody"] = {"required": True, "content": _json(body)}
    found["responses"] = {"200": {"description": "The answer.", "content": content}}
    found["responses"] |= {str(status): _error(path, status) for status in sorted({*errors, *[401] * guarded})}
    if path == "/health":
        found["responses"]["503"] = {"description": "No requests are accepted.", "content": _json(Health)}
    if guarded:
        found["security"] = [{"key": []}]
    return found


def _query(name: str, kind: str, default: int | None = None, **limits: int) -> dict[str, Any]:
    schema = {"type": kind, **limits} | ({} if default is None else {"default": default})
    return {"name": name, "in": "query", "required": default is None, "schema": schema}


def document(service: Service) -> dict[str, Any]:
    """Return the OpenAPI description of one server."""
    models = (*MODELS, *(CHAT_MODELS if service.chat else ()), *(TRACE_MODELS if service.tracer else ()))
    found = TypeAdapter.json_schemas(
        [(model.__name__, "validation", TypeAdapter[Any](model)) for model in models],
        ref_template="#/components/schemas/{model}",
    )
    schemas = found[1]["$defs"]
    components: dict[str, Any] = {"schemas": schemas}
    _set_limits(schemas, service)
    if service.key is not None:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}

    operation = functools.partial(_operation, service)
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "enum": service.names}}
    model = operation("/v1", "model", _json(Model), (*ALWAYS, 404))
    event = {"type": "object", "properties": {"data": {"type": "string", "description": "A completion as JSON."}}}
    stream = {"text/event-stream": {"schema": event | {"description": "An event of the stream."}}}
    completions = _json(Completion) | stream
    text = {"text/plain": {"schema": {"type": "string"}}}
    answers = _json(Texts, Beams)
    trace = operation("/v1/trace", "trace", _json(Traced), (*ALWAYS, 503))
    trace["parameters"] = [
        _query("text", "string", maxLength=MAX_TEXT),
        _query("min_tokens", "integer", 8, minimum=2, maximum=MAX_TEXT),
        _query("places", "integer", 3, minimum=1, maximum=MAX_PLACES),
    ]
    place = operation("/v1/trace/place", "place", _json(PlaceDetails), (*ALWAYS, 503))
    place["parameters"] = [
        _query("corpus", "integer", minimum=0),
        _query("position", "integer", minimum=0),
        _query("tokens", "integer", 1, minimum=1, maximum=MAX_TEXT),
    ]
    bounded = (*WITH_BODY, 404)
    answer = _json(ChatCompletion) | stream
    chat = {PATH: {"post": operation("/v1", "chat_completions", answer, bounded, ChatRequest)}}
    traced = {"/v1/trace": {"get": trace}, "/v1/trace/place": {"get": place}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpt2train", "version": __version__},
        "paths": {
            "/api": {m: operation("/api", f"{m}_api", answers, WITH_BODY, ApiRequest) for m in ("put", "post")},
            "/v1/models": {"get": operation("/v1", "models", _json(ModelList))},
            "/v1/models/{name}": {"get": {"parameters": [name]} | model},
            "/v1/completions": {"post": operation("/v1", "completions", completions, bounded, CompletionRequest)},
            **(chat if service.chat else {}),
            **(traced if service.tracer else {}),
            "/health": {"get": operation("/health", "health", _json(Health))},
            "/metrics": {"get": operation("/metrics", "metrics", text)},
        },
        "components": components,
    }


def _error(path: str, status: int) -> dict[str, Any]:
    example = error_body(path, status, *EXAMPLES.get(status, (HTTPStatus(status).phrase, None)))
    content = _json(OpenAIError if path.startswith("/v1") else Message)
    content["application/json"]["example"] = example
    answer = {"description": ERRORS[status], "content": content}
    if status in HEADERS:
        answer["headers"] = {HEADERS[status]: {"schema": {"type": "string"}}}
    return answer


def _json(*models: type) -> dict[str, Any]:
    found = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}


def _set_limits(schemas: dict[str, Any], service: Service) -> None:
    """Set the bounds that depend on the model and on the server's settings."""
    context, limits = service.context, service.settings
    for name in ("ChatRequest", "CompletionRequest") if service.chat else ("CompletionRequest",):
        fields = schemas[name]["properties"]
        fields["model"]["anyOf"][0] = {"type": "string", "enum": service.names}
        fields["n"]["anyOf"][0]["maximum"] = limits.max_sequences
    fields["max_tokens"]["anyOf"][0]["maximum"] = context - 1  # of a conversation it is a bound, as large as one likes
    for kind in fields["prompt"]["anyOf"]:
        items = kind.get("items", {})
        if items.get("type") == "integer":
            items["maximum"] = service.batcher.decoder.shape.vocab - 1
        else:
            kind |= {"maxItems": limits.max_sequences} if items else {}
            if "items" in items:
                items["items"]["maximum"] = service.batcher.decoder.shape.vocab - 1
    fields = schemas["ApiRequest"]["properties"]
    fields["prompts"]["maxItems"] = min(fields["prompts"]["maxItems"], limits.max_sequences)
    fields["tokens_to_generate"]["anyOf"][0]["maximum"] = context - 1
    width = fields["beam_width"]["anyOf"][0]
    width["maximum"] = min(width["maximum"], service.batcher.decoder.rows)
