"""Requests of OpenAI's API: what is taken, and what is refused by the name of its key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etdeploy.serve.schema import ChatRequest, CompletionRequest, RequestError, read_request
from tests.support.facts import lacks

USER = {"role": "user", "content": "hello"}


def chat(**fields: Any) -> ChatRequest:
    asked: ChatRequest = read_request(
        json.dumps({"messages": [USER], **fields}).encode(), ChatRequest
    )
    return asked


def test_keys_that_chat_programs_send_are_ignored() -> None:
    asked = chat(user="me", metadata={}, chat_id="1", n=1, tools=[], frequency_penalty=0.0)
    assert [message.plain() for message in asked.messages] == [USER]
    assert set(asked.sampling(1).values()) == {None}


def test_parts_of_text_are_one_text_and_developers_are_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(messages=[{"role": "developer", "content": "be brief"},
                           {"role": "user", "content": parts}])  # fmt: skip
    assert [message.plain() for message in asked.messages] == [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"},
    ]  # fmt: skip


def test_values_of_other_servers_are_understood() -> None:
    asked = chat(top_k=-1, seed=-1, stop="", temperature=1)
    sampling = asked.sampling(0)
    assert (sampling["top_k"], sampling["seed"], asked.stops) == (0, 2**63 - 1, ())
    assert chat(stop=["a", "", "b"]).stops == ("a", "b")


@pytest.mark.parametrize(("own", "given"), [(0.0, None), (0.7, 0)])
def test_a_greedy_text_has_no_settings_that_only_draws_have(
    own: float, given: float | None
) -> None:
    sampling = chat(temperature=given, top_p=0.9, top_k=40, min_p=0.1, seed=1).sampling(own)
    assert set(sampling) == {"temperature", "repetition_penalty", "seed"}
    assert chat(top_p=0.9).sampling(0.7)["top_p"] == 0.9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages"),
    ],
)
def test_what_cannot_be_honored_is_refused_by_its_key(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**fields)
    assert (refused.value.param, refused.value.status) == (param, 400)
    assert not lacks(refused.value.message, param)


def test_a_part_that_is_no_text_is_refused() -> None:
    image = {"role": "user", "content": [{"type": "image_url"}]}
    with pytest.raises(RequestError, match="image_url"):
        chat(messages=[image]).messages[0].plain()


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_request(body: bytes) -> None:
    with pytest.raises(RequestError, match="JSON"):
        read_request(body, ChatRequest)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([], []),
    ],
)
def test_a_completion_has_one_prompt_or_several(prompt: Any, prompts: list[Any]) -> None:
    asked = read_request(json.dumps({"prompt": prompt}).encode(), CompletionRequest)
    assert list(asked.prompts) == prompts
