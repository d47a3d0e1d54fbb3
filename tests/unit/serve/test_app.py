"""Who may use the server, and its errors, without a model."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from etdeploy.core.errors import DeviceLostError
from etdeploy.serve.app import Access, make_app
from etdeploy.serve.service import TextService

LOST = DeviceLostError("the device was lost: no answer")


class LostSession:
    """A session whose device is away."""

    def __init__(self) -> None:
        self.sync = SimpleNamespace(
            generation=SimpleNamespace(context=64, vocabulary=9),
            recipe=SimpleNamespace(benchmark=SimpleNamespace(generation=None)),
            decode=str,
            tokenizer=None,
        )

    def generate(self, *_: Any, **__: Any) -> Any:
        raise LOST


def answers(access: Access, *requests: httpx2.Request) -> list[httpx2.Response]:
    """What the application answers."""
    service = TextService(cast(Any, LostSession()), "model", None, 4)
    reports: list[str] = []

    async def send() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(make_app(service, access, reports.append))
        async with httpx2.AsyncClient(transport=transport) as client:
            return [await client.send(request) for request in requests]

    return asyncio.run(send())


def get(path: str, host: str = "localhost", **headers: str) -> httpx2.Request:
    return httpx2.Request("GET", f"http://{host}{path}", headers=headers)


def post(path: str, **fields: Any) -> httpx2.Request:
    return httpx2.Request("POST", f"http://localhost{path}", json=fields)


def test_a_token_is_needed_but_for_the_state_of_the_server() -> None:
    found = answers(
        Access("secret"),
        get("/health"),
        get("/v1/models"),
        get("/v1/models", authorization="Bearer secre"),
        get("/v1/models", authorization="Bearer secret"),
    )
    assert [each.status_code for each in found] == [200, 401, 401, 200]
    assert found[1].json()["error"]["code"] == "invalid_api_key"


def test_names_that_resolve_to_this_machine_are_refused_unless_it_listens_elsewhere() -> None:
    [refused, local] = answers(Access(), get("/health", "evil.example"), get("/health"))
    assert (refused.status_code, local.status_code) == (400, 200)
    [taken] = answers(Access("secret", hosts=("*",)), get("/health", "board.local"))
    assert taken.status_code == 200


def test_scripts_of_named_origins_may_call() -> None:
    access, page = Access(origins=("http://chat.example",)), "http://chat.example"
    [own, other] = answers(
        access, get("/v1/models", origin=page), get("/v1/models", origin="http://evil.example")
    )
    assert own.headers["access-control-allow-origin"] == page
    assert "access-control-allow-origin" not in other.headers


def test_an_error_in_a_stream_is_an_event_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat's stream begins before its text does."""
    service = TextService(cast(Any, LostSession()), "model", None, 4)
    monkeypatch.setattr(service, "chat_prompt", lambda _: (1,))
    asked = {"messages": [{"role": "user", "content": "x"}], "stream": True}

    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(make_app(service, Access()))
        async with httpx2.AsyncClient(transport=transport) as client:
            return await client.post("http://localhost/v1/chat/completions", json=asked)

    found = asyncio.run(send())
    first, error, end = [line for line in found.text.split("\n\n") if line]
    assert found.status_code == 200
    assert "assistant" in first
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "device_lost"
    assert end == "data: [DONE]"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (get("/v2/models"), 404, "not_found"),
        (get("/v1/models/other"), 404, "model_not_found"),
        (get("/v1/completions"), 405, "method_not_allowed"),
        (post("/v1/completions", prompt=[1], max_tokens=0), 400, "invalid_value"),
        (post("/v1/completions", prompt=[9]), 400, "invalid_value"),
        (post("/v1/completions", prompt=[1] * 65), 400, "context_length_exceeded"),
        (post("/v1/completions", prompt=[1], stream=True, logprobs=1), 400, "invalid_value"),
        (post("/v1/chat/completions", messages=[{"role": "user"}]), 400, "unsupported_value"),
        (post("/v1/completions", prompt=[1]), 503, "device_lost"),
        (post("/v1/completions", prompt=[1], stream=True), 503, "device_lost"),
    ],
)
def test_errors_have_a_status_and_a_code(request_: httpx2.Request, status: int, code: str) -> None:
    [found] = answers(Access(), request_)
    error = found.json()["error"]
    assert (found.status_code, error["code"]) == (status, code)
    assert error["message"]
