"""Texts for requests: one at a time, with a queue; what prompts have in common is computed once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from etdeploy.bench.text_generator import Answer, remaining_context
from etdeploy.core.errors import DeviceLostError, UsageError
from etdeploy.program.tokenizer import ChatTemplate
from etdeploy.serve.schema import ChatMessage, RequestError, TextRequest
from etdeploy.session.aio import AsyncSession
from etdeploy.session.text import require_short


class StopTexts:
    """Ends a text where one of several texts begins in it, and holds back what may be one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_found = False

    def take(self, piece: str) -> str:
        """Return what of the text so far can be shown."""
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_found, self._held = True, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return what was held back, of a text that has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if stop.startswith(text[len(text) - n :])), 0)


@dataclass
class GeneratedAnswer:
    """What is known of an answer when its pieces have ended."""

    token_ids: tuple[int, ...] = ()
    answer: Answer | None = None
    ends_at_stop: bool = False

    @property
    def finish_reason(self) -> str:
        """OpenAI's word."""
        at_token = self.answer is not None and self.answer.stopped == "stop_token"
        return "stop" if self.ends_at_stop or at_token else "length"


@dataclass(frozen=True)
class TokenLogProbability:
    """A token of a text after those before it, and the most probable one there."""

    token_id: int
    log_probability: float
    best_id: int
    best_log_probability: float


@dataclass
class TextService:
    """A language model on a device, for requests of several clients.

    Attributes:
        session: The model; its calls wait for each other.
        name: What clients call the model.
        template: Formats conversations; None for a model that cannot chat.
        most_waiting: Requests beyond so many are refused.
    """

    session: AsyncSession
    name: str
    template: ChatTemplate | None
    most_waiting: int
    waiting: int = 0
    _is_lost: bool = False
    _reopening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold a place in the queue.

        Raises RequestError if there is none, and for a device that is still away.
        """
        if self.waiting >= self.most_waiting:
            raise RequestError(
                f"{self.waiting} requests wait or are being answered; try again later",
                code="rate_limit_exceeded",
                status=429,
            )
        self.waiting += 1
        try:
            await self._connect()
            yield
        except DeviceLostError:
            self._is_lost = True
            raise
        finally:
            self.waiting -= 1

    async def _connect(self) -> None:
        async with self._reopening:
            if self._is_lost:
                await self.session.reopen()
                self._is_lost = False

    def chat_prompt(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return the token ids of a conversation, up to where the answer begins."""
        tokenizer = self.session.sync.tokenizer
        if self.template is None or tokenizer is None:
            raise RequestError(
                f"the model {self.name} has no chat template; use /v1/completions",
                code="unsupported_value",
            )
        rendered = self.template.render([message.plain() for message in messages])
        require_short(rendered, self.session.sync.generation)
        return self._fitting(tokenizer.encode_rendered(rendered))

    def text_prompt(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Return the token ids of a prompt."""
        session = self.session.sync
        if isinstance(prompt, str):
            return self._fitting(session.encode(prompt))
        unknown = [each for each in prompt if not 0 <= each < session.generation.vocabulary]
        if unknown:
            raise RequestError(
                f"the prompt has the token {unknown[0]}, and the vocabulary has "
                f"{session.generation.vocabulary:,}",
                "prompt",
            )
        return self._fitting(tuple(prompt))

    def _fitting(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        context = self.session.sync.generation.context
        if len(ids) > context:
            raise RequestError(
                f"the prompt has {len(ids):,} tokens, and the model's context {context:,}",
                code="context_length_exceeded",
            )
        remaining_context(self.session.sync.generation, len(ids))
        return ids

    async def generate(
        self, ids: tuple[int, ...], request: TextRequest, most: int, result: GeneratedAnswer
    ) -> AsyncGenerator[str, None]:
        """Give the pieces of an answer, and complete `result` at their end."""
        stops, event = StopTexts(request.stops), threading.Event()
        own = self.session.sync.recipe.benchmark.generation
        sampling = request.sampling(own.temperature if own else 0)
        async with self.session.generate(ids, most, stop=event, **sampling) as text:
            async for piece in text:
                if shown := stops.take(piece):
                    yield shown
                if stops.is_found:
                    event.set()
                    break
        result.ends_at_stop = stops.is_found
        result.token_ids = tuple(text.token_ids)
        result.answer = text.answer
        if rest := stops.end():
            yield rest

    async def log_probabilities(
        self, before: Sequence[int], ids: Sequence[int]
    ) -> tuple[TokenLogProbability, ...]:
        """Return those of tokens after the ones before them."""
        if not ids:
            return ()
        found = await self.session.score(before, ids)
        numbers = zip(
            found.token_ids, found.log_probabilities.tolist(), found.best_ids.tolist(),
            found.best_log_probabilities.tolist(), strict=True,
        )  # fmt: skip
        return tuple(TokenLogProbability(*each) for each in numbers)

    def decode(self, token: int) -> str:
        """Return the text of a single token; its number without a tokenizer."""
        with suppress(UsageError):
            return self.session.sync.decode([token])
        return str(token)
