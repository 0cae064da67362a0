"""The server's application: routes, errors, metrics and pages."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from gpt2train import __version__
from gpt2train.serve.errors import Refusal, error_response, of_validation
from gpt2train.serve.guard import Guard
from gpt2train.serve.manual import manual
from gpt2train.serve.megatron import megatron_routes
from gpt2train.serve.openai import openai_routes
from gpt2train.serve.page import add_page
from gpt2train.serve.service import Service


def make_app(service: Service) -> FastAPI:
    """The ASGI application of a model that is served."""
    # FastAPI's own pages of the interface load their scripts from another host; `/docs` here needs nobody.
    app = FastAPI(title="gpt2train", version=__version__, docs_url=None, redoc_url=None)
    app.include_router(megatron_routes(service))
    app.include_router(openai_routes(service))

    @app.get("/health", tags=["Operation"])
    async def health() -> Response:
        """200 while requests are taken, else 503: the model failed, the server ends, or a step hangs."""
        batcher = service.batcher
        stuck = batcher.turn_seconds > service.settings.deadline
        state = {"model": service.name, "rows": batcher.rows, "waiting": batcher.waiting}
        if batcher.works and not stuck:
            return JSONResponse({"status": "ok", **state})
        status = "stuck" if stuck else "failed" if batcher.failure else "ending"
        return JSONResponse({"status": status, **state}, 503)

    @app.get("/metrics", tags=["Operation"])
    async def metrics() -> Response:
        """Counters for Prometheus."""
        service.metrics.waiting.set(service.batcher.waiting)
        service.metrics.running.set(service.batcher.rows)
        service.metrics.steps.set(service.batcher.steps)
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(manual(app.openapi()))

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return error_response(request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return error_response(request.url.path, of_validation(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> Response:
        return error_response(request.url.path, Refusal(error.status_code, str(error.detail), headers=error.headers))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return error_response(request.url.path, Refusal(500, "the server failed at this request; its log says where"))

    add_page(app)
    app.add_middleware(Guard, service=service)
    return app
