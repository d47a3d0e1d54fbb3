"""An answer in the form of OpenAI's API: whole, or as a stream of events."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from etdeploy.core.console import count
from etdeploy.serve.schema import ChatRequest, CompletionRequest, TextRequest
from etdeploy.serve.service import GeneratedAnswer, TextService, TokenLogProbability

Event = dict[str, Any]
DEFAULT_NEW_TOKENS = 1024


@dataclass(frozen=True)
class AnswerKind:
    """How answers of a route are written.

    Attributes:
        whole, part: What an answer and an event of a stream are called.
        prefix: Of its id.
        is_chat: Whether it is a message.
    """

    whole: str
    part: str
    prefix: str
    is_chat: bool


CHAT = AnswerKind("chat.completion", "chat.completion.chunk", "chatcmpl", is_chat=True)
TEXT = AnswerKind("text_completion", "text_completion", "cmpl", is_chat=False)


@dataclass
class Exchange:
    """A request and its answers, one for each prompt.

    Attributes:
        most: The most tokens of an answer.
        answers: What is known of those that have ended.
    """

    service: TextService
    asked: TextRequest
    prompts: Sequence[tuple[int, ...]]
    most: int
    kind: AnswerKind
    answers: list[GeneratedAnswer] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._head = {
            "id": f"{self.kind.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.service.name,
        }

    async def whole(self) -> Event:
        """Return all answers."""
        choices = []
        async with self.service.turn():
            for index, ids in enumerate(self.prompts):
                answer = self._begun()
                text = "".join([piece async for piece in self._pieces(ids, answer)])
                scores = await self._log_probabilities(ids, answer)
                choices.append(self._choice(index, ids, text, answer, scores))
        found = {
            **self._head,
            "object": self.kind.whole,
            "choices": choices,
            "usage": self._usage(),
        }
        return {**found, "timings": self._timings()}

    async def events(self) -> AsyncGenerator[Event, None]:
        """Give the answers piece by piece."""
        async with self.service.turn():
            for index, ids in enumerate(self.prompts):
                answer = self._begun()
                if self.kind.is_chat:
                    yield self._event(index, {"role": "assistant", "content": ""})
                if self._echoes:
                    yield self._event(index, self._decoded(ids))
                async for piece in self._pieces(ids, answer):
                    yield self._event(index, {"content": piece} if self.kind.is_chat else piece)
                yield self._event(index, {} if self.kind.is_chat else "", answer.finish_reason)
        if self.asked.includes_usage:
            end = {**self._head, "object": self.kind.part, "choices": [], "usage": self._usage()}
            yield {**end, "timings": self._timings()}

    def line(self, path: str) -> str:
        """Return a line about it for the operator."""
        usage = self._usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        rate = self._timings()["decode_tokens_per_s"]
        speed = f", {rate:.1f} tokens/s" if rate else ""
        return (
            f"{path}: {count(usage['prompt_tokens'], 'token')} ({cached:,} cached) and "
            f"{usage['completion_tokens']:,} new{speed}, {time.monotonic() - self.began_s:.1f} s"
        )

    def _begun(self) -> GeneratedAnswer:
        self.answers.append(GeneratedAnswer())
        return self.answers[-1]

    async def _pieces(
        self, ids: tuple[int, ...], answer: GeneratedAnswer
    ) -> AsyncGenerator[str, None]:
        if not self.most:
            return
        pieces = self.service.generate(ids, self.asked, self.most, answer)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    @property
    def _echoes(self) -> bool:
        return isinstance(self.asked, CompletionRequest) and bool(self.asked.echo)

    @property
    def _has_log_probabilities(self) -> bool:
        if isinstance(self.asked, ChatRequest):
            return bool(self.asked.logprobs)
        return isinstance(self.asked, CompletionRequest) and self.asked.logprobs is not None

    async def _log_probabilities(
        self, ids: tuple[int, ...], answer: GeneratedAnswer
    ) -> Sequence[TokenLogProbability | None]:
        """Those of the tokens of the text; None for one without a token before it."""
        if not self._has_log_probabilities:
            return ()
        known = 1 if self._echoes else len(ids)
        found = await self.service.log_probabilities(ids[:known], (*ids[known:], *answer.token_ids))
        return (None, *found) if self._echoes else found

    def _choice(
        self,
        index: int,
        ids: tuple[int, ...],
        text: str,
        answer: GeneratedAnswer,
        scores: Sequence[TokenLogProbability | None],
    ) -> Event:
        end = {"index": index, "finish_reason": answer.finish_reason}
        if self.kind.is_chat:
            logprobs = {"content": [self._scored(each) for each in scores if each]}
            message = {"role": "assistant", "content": text}
            return {**end, "message": message, "logprobs": logprobs if scores else None}
        shown = self._decoded(ids) + text if self._echoes else text
        tokens = (*ids, *answer.token_ids) if self._echoes else answer.token_ids
        return {**end, "text": shown, "logprobs": self._table(tokens, scores) if scores else None}

    def _scored(self, score: TokenLogProbability) -> Event:
        best = self._named(score.best_id, score.best_log_probability)
        return {**self._named(score.token_id, score.log_probability), "top_logprobs": [best]}

    def _named(self, token: int, log_probability: float) -> Event:
        text = self.service.decode(token)
        return {"token": text, "logprob": log_probability, "bytes": list(text.encode())}

    def _table(self, tokens: Sequence[int], scores: Sequence[TokenLogProbability | None]) -> Event:
        texts = [self.service.decode(token) for token in tokens]
        offsets = [0]
        for text in texts[:-1]:
            offsets.append(offsets[-1] + len(text))
        top = [
            each and {self.service.decode(each.best_id): each.best_log_probability}
            for each in scores
        ]
        return {
            "tokens": texts,
            "token_logprobs": [each and each.log_probability for each in scores],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _decoded(self, ids: Sequence[int]) -> str:
        return self.service.session.sync.decode(ids)

    def _event(self, index: int, part: Any, reason: str | None = None) -> Event:
        key = "delta" if self.kind.is_chat else "text"
        choice = {"index": index, key: part, "finish_reason": reason, "logprobs": None}
        event = {**self._head, "object": self.kind.part, "choices": [choice]}
        return {**event, "usage": None} if self.asked.includes_usage else event

    def _usage(self) -> Event:
        ended = [each.answer for each in self.answers if each.answer]
        prompt = sum(map(len, self.prompts))
        new = sum(len(each.token_ids) for each in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": sum(e.cached_tokens for e in ended)},
        }

    def _timings(self) -> Event:
        """Those of the device, of the last answer."""
        last = next((a.answer for a in reversed(self.answers) if a.answer), None)
        return {
            "first_token_ms": last and last.ttft_ms,
            "prefill_tokens_per_s": last and last.prefill_tokens_per_s,
            "decode_tokens_per_s": last and last.decode_tokens_per_s,
        }
