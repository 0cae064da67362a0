"""Routes `/v1/trace`: spans of a text that the training tokens repeat, and the history of a place of these tokens."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from starlette.requests import Request

from gpt2train.errors import UserError
from gpt2train.runs.text_trace import TextTracer
from gpt2train.serve.errors import RETRY, ApiError, printable_name, wrong_field
from gpt2train.store.removal import RemovalCheck

T = TypeVar("T")

MAX_TEXT = 32_768  # characters of a text to trace; the head of a request, which has it, ends at 64 KB
MAX_PLACES = 100
LOOK_UP_SECONDS = 10.0  # to search the folders of the data steps for a document

Corpus = Annotated[int, Query(ge=0)]
Position = Annotated[int, Query(ge=0)]
Tokens = Annotated[int, Query(ge=1, le=MAX_TEXT)]
Text = Annotated[str, Query(max_length=MAX_TEXT)]
MinTokens = Annotated[int, Query(ge=2, le=MAX_TEXT)]
Places = Annotated[int, Query(ge=1, le=MAX_PLACES)]


def trace_routes(tracer: TextTracer) -> APIRouter:
    """Return the router of /v1/trace."""
    router = APIRouter(prefix="/v1/trace", tags=["Trace"])
    no_removal = RemovalCheck([corpus.prefix for corpus in tracer.source.corpora])  # the index stays open after one
    one = asyncio.Semaphore(1)  # the tracer's tables are opened as they are needed, by one thread at a time

    async def in_thread(work: Callable[[], T]) -> T:
        async with one:
            try:
                no_removal()
            except UserError as error:
                raise ApiError(503, str(error), headers=RETRY) from error
            try:
                return await asyncio.to_thread(work)
            except UserError as error:
                raise ApiError(400, str(error)) from error

    @router.get("")
    async def trace(request: Request, text: Text, min_tokens: MinTokens = 8, places: Places = 3) -> dict[str, Any]:
        """Find the longest spans of a text that occur in the training tokens."""
        _check_names(request, {"text", "min_tokens", "places"})
        if any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            raise wrong_field("text", "it is not valid Unicode")
        found = asdict(await in_thread(lambda: tracer.trace_text(text, min_tokens, places)))
        del found["corpora"]  # paths on the server
        for span in found["spans"]:
            del span["counts"]
        return found

    @router.get("/place")
    async def place(request: Request, corpus: Corpus, position: Position, tokens: Tokens = 1) -> dict[str, Any]:
        """Describe a place of the training tokens: page, text around it, data steps and training steps."""
        _check_names(request, {"corpus", "position", "tokens"})
        return asdict(await in_thread(lambda: tracer.details(corpus, position, tokens, seconds=LOOK_UP_SECONDS)))

    return router


def _check_names(request: Request, names: set[str]) -> None:
    """Refuse unknown parameters, as unknown fields of a body are."""
    if unknown := sorted(set(request.query_params) - names):
        shown = printable_name(unknown[0])
        raise ApiError(400, f"unknown parameter {shown!r}; the parameters are {', '.join(sorted(names))}", shown)
