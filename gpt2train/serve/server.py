"""HTTP server of a decoder: its ASGI application, the listening socket, and the shutdown by a signal."""

import functools
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from gpt2train import __version__
from gpt2train.data.chat import Chat
from gpt2train.data.tokenizer import Tokenizer
from gpt2train.errors import RunError
from gpt2train.inference.decoder import Decoder
from gpt2train.runs.text_trace import TextTracer, find_source
from gpt2train.serve.batcher import Batcher
from gpt2train.serve.chat import chat_routes
from gpt2train.serve.connection import http_server
from gpt2train.serve.errors import ApiError, error_response, from_http_exception, from_validation_error
from gpt2train.serve.hosts import allowed_hosts
from gpt2train.serve.megatron import megatron_routes
from gpt2train.serve.middleware import Guard
from gpt2train.serve.openai import openai_routes
from gpt2train.serve.page import add_page, render_docs
from gpt2train.serve.schema import document
from gpt2train.serve.service import Service
from gpt2train.serve.settings import ServeSettings
from gpt2train.serve.trace import trace_routes


def make_app(service: Service) -> FastAPI:
    """Create the ASGI application of a served model."""
    # FastAPI's own documentation pages load scripts from another host; `/docs` here is self-contained. A redirect of a
    # path with a slash more names http and this server, also behind a proxy with TLS, and clients send key and text on.
    app = FastAPI(title="gpt2train", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    description = document(service)
    app.openapi = lambda: description  # type: ignore[method-assign] # as FastAPI documents
    app.include_router(megatron_routes(service))
    app.include_router(openai_routes(service))
    if service.chat is not None:
        app.include_router(chat_routes(service, service.chat))
    if service.tracer is not None:
        app.include_router(trace_routes(service.tracer))

    @app.get("/health", tags=["Operation"])
    async def health() -> Response:
        """Return 200 while requests are accepted, else 503: failed, shutting down, or stuck in a step."""
        batcher = service.batcher
        stuck = batcher.iteration_seconds > service.settings.deadline
        state = {"model": service.name, "rows": batcher.rows, "waiting": batcher.waiting}
        if batcher.accepting and not stuck:
            return JSONResponse({"status": "ok", **state})
        status = "stuck" if stuck else "failed" if batcher.failure else "ending"
        return JSONResponse({"status": status, **state}, 503)

    @app.get("/metrics", tags=["Operation"])
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        service.metrics.waiting.set(service.batcher.waiting)
        service.metrics.running.set(service.batcher.rows)
        service.metrics.steps.set(service.batcher.steps)
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(render_docs(app.openapi()))

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error_response(request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return error_response(request.url.path, from_validation_error(error))

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        refusal = from_http_exception(error, path, service.chat is not None)
        if refusal.status == 405 and path in description["paths"]:  # Starlette lists the methods of one route only
            allowed = ", ".join(method.upper() for method in description["paths"][path])
            refusal = ApiError(405, f"this path supports {allowed}", headers={"Allow": allowed})
        return error_response(path, refusal)

    add_page(app)
    app.add_middleware(Guard, service=service)
    return app


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
            if self.service.chat is not None:
                self.service.chat.close()
        if batcher.failure:
            raise RunError(f"the decoder failed: {type(batcher.failure).__name__}: {batcher.failure}")


def prepare(
    decoder: Decoder,
    tokenizer: Tokenizer,
    settings: ServeSettings,
    name: str,
    trace: Path | None = None,
    stop_tokens: tuple[int, ...] = (),
    chat: Chat | None = None,
) -> Server:
    """Bind the address and create the server of a decoder without rows.

    Args:
        decoder: model with a free batch.
        tokenizer: tokenizer of the model.
        settings: address and limits.
        name: name of the model for clients; `settings.name` overrides it.
        trace: run folder, output folder of the data steps or prefix of token files that /v1/trace searches.
        stop_tokens: ids that end a continuation, besides the token that ends a document.
        chat: encoder of conversations, for a model with a chat template.

    Raises:
        UserError: the address cannot be bound, the key file cannot be read, or there is no index to trace texts in.
    """
    key, tracer = settings.read_key(), TextTracer(find_source(trace)) if trace else None
    listener = settings.bind()
    batcher = Batcher(decoder, settings.max_queued, settings.prefill_tokens)
    hosts = allowed_hosts(listener.getsockname()[0], settings.host, settings.allowed_host)
    named = settings.name or name
    service = Service(
        batcher, tokenizer, settings, named, key, hosts, tracer=tracer, stop_tokens=stop_tokens, chat=chat
    )
    tokenizer.source = service.name  # type: ignore[attr-defined] # its errors reach clients, which see no paths
    http = http_server(make_app(service), settings, listener)
    batcher.on_failure = functools.partial(setattr, http, "should_exit", True)
    return Server(service, http, listener)
