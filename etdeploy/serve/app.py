"""The ASGI application: OpenAI's routes, with streams of server-sent events."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.serve.exchange import CHAT, DEFAULT_NEW_TOKENS, TEXT, AnswerKind, Event, Exchange
from etdeploy.serve.schema import (
    ChatRequest,
    CompletionRequest,
    RequestError,
    TextRequest,
    read_request,
)
from etdeploy.serve.service import TextService

T = TypeVar("T")
# A request has at most the text of its context; ids as JSON are longer than text.
MOST_BODY_BYTES = 16 << 20
_DONE = "[DONE]"
# By OpenAI, of a request that the client's end has closed; nobody reads it.
_CLIENT_CLOSED = 499


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        token: What clients send as `Authorization: Bearer TOKEN`; None for no check.
        hosts: Values of the header Host; other ones come from pages that resolve their own name to
            this machine. `*` for any.
        origins: Of pages whose scripts may call the server.
    """

    token: str | None = None
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "[::1]")
    origins: Sequence[str] = ()


def make_app(
    service: TextService, access: Access, report: Callable[[str], object] | None = None
) -> Starlette:
    """Return the application.

    Args:
        service: The model.
        access: Who may use it.
        report: Takes a line about each request that was answered or failed; None for none.
    """
    routes = _Routes(service, report or (lambda _: None))
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(access.hosts))]
    if access.origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        )
    if access.token:
        middleware.append(Middleware(_BearerToken, token=access.token))
    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers={404: _not_found, 405: _wrong_method},
    )


class _BearerToken:
    """Refuses requests without the token; `/health` is open."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization", "").encode()
        if hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        text = "the token is missing or wrong; send the header Authorization: Bearer TOKEN"
        refused = _error(text, 401, "invalid_api_key", kind="authentication_error")
        await refused(scope, receive, send)


def _error(
    message: str,
    status: int,
    code: str | None = None,
    param: str | None = None,
    kind: str = "invalid_request_error",
) -> JSONResponse:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    headers = {"Retry-After": "1"} if status == 429 else None
    return JSONResponse(body, status, headers)


def _failed(error: EtdeployError) -> JSONResponse:
    if isinstance(error, RequestError):
        return _error(error.message, error.status, error.code, error.param)
    if isinstance(error, UsageError):
        return _error(error.message, 400, "invalid_value")
    status = 503 if isinstance(error, DeviceError) else 500
    return _error(error.message, status, error.kind.replace(" ", "_"), kind="server_error")


async def _not_found(request: Request, _: Exception) -> Response:
    return _error(f"there is no {request.url.path}", 404, "not_found")


async def _wrong_method(request: Request, _: Exception) -> Response:
    return _error(f"{request.url.path} does not take {request.method}", 405, "method_not_allowed")


class _EventStream(Response):
    """Sends events as they come; ends them when the client closes the connection."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Event, None], ended: Callable[[], object]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._ended = events, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await _until_disconnected(receive, self._send(send))
        except ClientDisconnect:
            return
        finally:
            self._ended()

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for event in self._events:
                await self._send_data(send, json.dumps(event, ensure_ascii=False))
        except EtdeployError as error:  # too late for a status
            await self._send_data(send, bytes(_failed(error).body).decode())
        finally:
            await self._events.aclose()
        await self._send_data(send, _DONE)
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _send_data(send: Send, data: str) -> None:
        body = f"data: {data}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work; cancels it, and raises ClientDisconnect, if the client leaves."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait({working})
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request) -> bytes:
    """Return a request's body; raises RequestError for one that is too large, before it is read."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise RequestError(
                f"the body has more than {MOST_BODY_BYTES:,} bytes", code="too_large", status=413
            )
    return bytes(body)


class _Routes:
    def __init__(self, service: TextService, report: Callable[[str], object]) -> None:
        self._service, self._report = service, report
        self._started = int(time.time())

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "waiting": self._service.waiting})

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._service.name:
            return _error(self._unknown(name), 404, "model_not_found", "model")
        return JSONResponse(self._model())

    def _model(self) -> Event:
        return {
            "id": self._service.name, "object": "model", "created": self._started,
            "owned_by": "etdeploy",
            "context_length": self._service.session.sync.generation.context,
        }  # fmt: skip

    def _unknown(self, name: str) -> str:
        return f"there is no model {name!r}; this server has {self._service.name!r}"

    async def chat(self, request: Request) -> Response:
        return await self._answered(request, self._chat)

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, self._complete)

    async def _answered(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_CLOSED)
        except EtdeployError as error:
            self._report(f"{request.url.path}: {error.kind}: {error.message}")
            return _failed(error)

    async def _chat(self, request: Request) -> Response:
        asked: ChatRequest = read_request(await _read_body(request), ChatRequest)
        if asked.logprobs and asked.stream:
            raise RequestError("logprobs are not supported in a stream", "logprobs")
        most = (
            asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        )
        ids = self._service.chat_prompt(asked.messages)
        return await self._respond(request, asked, [ids], most, CHAT)

    async def _complete(self, request: Request) -> Response:
        asked: CompletionRequest = read_request(await _read_body(request), CompletionRequest)
        if asked.logprobs is not None and asked.stream:
            raise RequestError("logprobs are not supported in a stream", "logprobs")
        prompts = [self._service.text_prompt(prompt) for prompt in asked.prompts]
        return await self._respond(request, asked, prompts, asked.max_tokens, TEXT)

    async def _respond(
        self,
        request: Request,
        asked: TextRequest,
        prompts: Sequence[tuple[int, ...]],
        most: int | None,
        kind: AnswerKind,
    ) -> Response:
        if asked.model and asked.model != self._service.name:
            raise RequestError(self._unknown(asked.model), "model", "model_not_found", 404)
        most = DEFAULT_NEW_TOKENS if most is None else most
        if not most and not getattr(asked, "echo", None):
            raise RequestError("max_tokens is 0; it must be 1 or more", "max_tokens")
        exchange = Exchange(self._service, asked, prompts, most, kind)
        if not asked.stream:
            body = await _until_disconnected(request.receive, exchange.whole())
            self._report(exchange.line(request.url.path))
            return JSONResponse(body)
        events = exchange.events()
        # Errors at the beginning have a status of their own.
        first = await _until_disconnected(request.receive, _next(events))
        return _EventStream(
            _preceded(first, events), lambda: self._report(exchange.line(request.url.path))
        )


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _preceded(
    first: Event, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        await events.aclose()
