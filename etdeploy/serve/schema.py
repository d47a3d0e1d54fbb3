"""The requests of OpenAI's API that the server takes, and its answers.

Keys of a request that this server does not know are ignored, as other servers do: user interfaces
send many. Those that would change the text, and cannot be honored, are refused unless they have
their neutral value (https://platform.openai.com/docs/api-reference).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etdeploy.core.errors import UsageError

_MOST_STOPS = 16
# Values with which a key has no effect; any other one is refused.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "top_logprobs": (0, 1),
}


class RequestError(UsageError):
    """A request that is refused.

    Attributes:
        param: The key that it is about; None for the whole request.
        code: OpenAI's word for it, by which clients tell errors apart.
        status: The status of the HTTP response.
    """

    def __init__(
        self, message: str, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part] | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates take it: with a text, and with the role `system` for `developer`."""
        role = "system" if self.role == "developer" else self.role
        if not isinstance(self.content, list):
            return {"role": role, "content": self.content or ""}
        others = [part.type for part in self.content if part.type != "text"]
        if others:
            raise RequestError(
                f"messages: a part has the type {others[0]!r}, and the model takes text only",
                "messages",
            )
        return {"role": role, "content": "".join(part.text for part in self.content)}


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


Stops = str | Annotated[list[str], Field(max_length=_MOST_STOPS)] | None


class TextRequest(BaseModel):
    """What requests of both kinds have; None leaves a value as the recipe has it."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    seed: int | None = None
    stop: Stops = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in found if text)

    def sampling(self, temperature: float) -> dict[str, Any]:
        """Return arguments of `Session.generate`; `temperature` is the recipe's.

        Of a greedy text, what has no effect is left out: clients send all of their settings.
        """
        # Other servers take -1 for all tokens, and any 64-bit number as a seed.
        top_k = None if self.top_k is None else max(0, self.top_k)
        seed = None if self.seed is None else self.seed % 2**63
        given = {"repetition_penalty": self.repetition_penalty, "seed": seed}
        if not (temperature if self.temperature is None else self.temperature):
            return {"temperature": self.temperature, **given}
        drawn = {"top_p": self.top_p, "top_k": top_k, "min_p": self.min_p}
        return {"temperature": self.temperature, **drawn, **given}

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(TextRequest):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=0)
    logprobs: bool | None = None


class CompletionRequest(TextRequest):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """Each of the prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt  # type: ignore[return-value]


def read_request(body: bytes, kind: type[BaseModel]) -> Any:
    """Return the request of a body.

    Raises RequestError for a body that is not JSON, and for a value that is not possible.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError("the body is not a JSON object")
    for key, neutral in _NEUTRAL.items():
        value = fields.get(key)
        if value is not None and not any(value == each for each in neutral):
            raise RequestError(f"{key} is not supported; leave it out", key, "unsupported_value")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise RequestError(f"{place}: {problem['msg']}", place.partition(".")[0]) from error
