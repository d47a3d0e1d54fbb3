"""etdeploy serve with the openai client: a small model, and one server for all tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from benchmarks.serve import burst, served
from etdeploy.cache.workspace import Workspace

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(model: str, export_workspace: Workspace) -> Iterator[tuple[str, int]]:
    """Address and process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ETDEPLOY_CACHE_DIR", str(export_workspace.root))
        with served(["--model", model, "--queue", "40"]) as running:
            yield running


@pytest.fixture(scope="module")
def client(server: tuple[str, int]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server[0], api_key="none", max_retries=0) as made:
        yield made


def test_the_model_has_the_name_of_its_file(client: Any) -> None:
    [found] = client.models.list()
    assert (found.id, found.owned_by) == ("program.pte", "etdeploy")
    assert client.models.retrieve("program.pte").id == "program.pte"


def test_an_answer_whole_and_as_a_stream(client: Any) -> None:
    given: dict[str, Any] = {
        "model": "program.pte", "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 9, "temperature": 0, "top_p": 0.9,
    }  # fmt: skip
    whole = client.chat.completions.create(**given)
    [choice] = whole.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert whole.usage.completion_tokens == 9
    assert whole.usage.prompt_tokens == len("<user>Hello<assistant>")
    events = list(
        client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True})
    )
    assert events[0].choices[0].delta.role == "assistant"
    pieces = [e.choices[0].delta.content or "" for e in events if e.choices]
    assert "".join(pieces) == choice.message.content
    assert len(pieces) > 4
    assert events[-2].choices[0].finish_reason == "length"
    # The second time, only the last token of the prompt is computed.
    usage = events[-1].usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_a_stop_ends_the_text_before_itself(client: Any) -> None:
    given: dict[str, Any] = {
        "model": "program.pte",
        "prompt": "The sky is",
        "max_tokens": 12,
        "temperature": 0,
    }
    text = client.completions.create(**given).choices[0].text
    stop = text[4:6]
    [choice] = client.completions.create(**given, stop=[stop]).choices
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")


def test_log_probabilities_of_a_text_as_lm_eval_asks_for_them(client: Any) -> None:
    prompts = [[1, 5, 9, 7], [1, 5, 9]]
    made = client.completions.create(
        model="program.pte", prompt=prompts, max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    for prompt, choice in zip(prompts, made.choices, strict=True):
        found = choice.logprobs
        assert len(found.tokens) == len(prompt) + 1
        assert found.token_logprobs[0] is None
        assert all(number < 0 for number in found.token_logprobs[1:])
        # The generated token is the most probable one.
        assert list(found.top_logprobs[-1].values()) == [found.token_logprobs[-1]]
    longer, shorter = (choice.logprobs.token_logprobs for choice in made.choices)
    assert longer[1:3] == pytest.approx(shorter[1:3], abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"n": 2}, openai.BadRequestError, "n is not supported"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"model": "other"}, openai.NotFoundError, "program.pte"),
        ({"prompt": "x" * 300}, openai.BadRequestError, "300 tokens"),
        ({"prompt": [999]}, openai.BadRequestError, "999"),
        ({"prompt": ""}, openai.BadRequestError, "empty"),
        ({"prompt": "x" * (17 << 20)}, openai.APIStatusError, "16,777,216"),
    ],
)
def test_a_request_that_is_refused(
    client: Any, fields: dict[str, Any], kind: type[Exception], words: str
) -> None:
    given: dict[str, Any] = {"model": "program.pte", "prompt": "x", "max_tokens": 2, **fields}
    with pytest.raises(kind, match=words):
        client.completions.create(**given)
    assert client.completions.create(model="program.pte", prompt="x", max_tokens=2).choices[0].text


def test_none_of_many_requests_is_lost_though_some_are_cut_off(server: tuple[str, int]) -> None:
    found = asyncio.run(burst(server[0], requests=60, cut=6, at_once=12))
    assert (found.answered, found.cut, found.lost, found.mixed_up) == (54, 6, [], [])


def test_a_runner_that_was_killed_is_started_again(client: Any, server: tuple[str, int]) -> None:
    given: dict[str, Any] = {
        "model": "program.pte",
        "prompt": "The sky is",
        "max_tokens": 5,
        "temperature": 0,
    }
    text = client.completions.create(**given).choices[0].text
    children = Path(f"/proc/{server[1]}/task/{server[1]}/children").read_text().split()
    for thread in Path(f"/proc/{server[1]}/task").iterdir():
        children += (thread / "children").read_text().split()
    for child in set(children):
        os.kill(int(child), signal.SIGKILL)
    with pytest.raises(openai.InternalServerError):
        client.completions.create(**given)
    assert client.completions.create(**given).choices[0].text == text


def test_pages_that_resolve_to_this_machine_are_refused(server: tuple[str, int]) -> None:
    refused = httpx2.get(f"{server[0]}/models", headers={"Host": "evil.example"})
    assert refused.status_code == 400


def _serve(model: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "etdeploy", "serve", "--model", model, *options]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_port_that_is_taken(model: str, server: tuple[str, int]) -> None:
    port = server[0].split(":")[2].partition("/")[0]
    refused = _serve(model, "--port", port)
    assert refused.returncode == 2
    assert port in refused.stderr
    assert "--port 0" in refused.stderr
    assert "export" not in refused.stderr
