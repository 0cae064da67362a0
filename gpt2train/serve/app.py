"""ASGI application of the server: routes, error handlers, metrics and pages."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from gpt2train import __version__
from gpt2train.serve.errors import ApiError, error_response, from_http_exception, from_validation_error
from gpt2train.serve.megatron import megatron_routes
from gpt2train.serve.middleware import Guard
from gpt2train.serve.openai import openai_routes
from gpt2train.serve.page import add_page, render_docs
from gpt2train.serve.schema import document
from gpt2train.serve.service import Service
from gpt2train.serve.trace import trace_routes


def make_app(service: Service) -> FastAPI:
    """Create the ASGI application of a served model."""
    # FastAPI's own documentation pages load scripts from another host; `/docs` here is self-contained.
    app = FastAPI(title="gpt2train", version=__version__, docs_url=None, redoc_url=None)
    description = document(service)
    app.openapi = lambda: description  # type: ignore[method-assign] # as FastAPI documents
    app.include_router(megatron_routes(service))
    app.include_router(openai_routes(service))
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
        refusal = from_http_exception(error, path)
        if refusal.status == 405 and path in description["paths"]:  # Starlette lists the methods of one route only
            allowed = ", ".join(method.upper() for method in description["paths"][path])
            refusal = ApiError(405, f"this path supports {allowed}", headers={"Allow": allowed})
        return error_response(path, refusal)

    add_page(app)
    app.add_middleware(Guard, service=service)
    return app
