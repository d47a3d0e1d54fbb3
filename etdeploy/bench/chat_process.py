"""A chat with one process on the device, which keeps the conversation in its cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import cast

from etdeploy.bench.text_generator import (
    PROGRAM,
    GenerationOutput,
    TextGenerator,
    more_context,
    remaining_context,
)
from etdeploy.core import cancel
from etdeploy.core.console import count
from etdeploy.core.errors import Interrupted, RunError
from etdeploy.devices.base import ConversingRun, Talk
from etdeploy.program.generation import Generation
from etdeploy.program.tokenizer import ChatTemplate, Tokenizer
from etdeploy.runner.generation import (
    READY,
    STOP,
    End,
    PrefillProgress,
    Sampling,
    Token,
    answer_line,
    listening_arguments,
    parse_event,
    request_lines,
)

IDLE_TIMEOUT_S = 3600
"""A runner without input for so long exits; the next prompt starts another one."""
_REQUEST = "request.txt"


class ChatProcess:
    """A program that stays loaded between prompts, so only new tokens of a prompt are computed.

    The generator's run folder must support conversations (`ConversingRun`).
    """

    def __init__(self, generator: TextGenerator, idle_timeout_s: int = IDLE_TIMEOUT_S) -> None:
        self._generator = generator
        self._idle_timeout_s = idle_timeout_s
        self._stack = ExitStack()
        self._talk: Talk | None = None
        # Ids whose keys and values are in the program's cache.
        self._cache: list[int] = []
        # The longest that it was since it was empty: a ring buffer has overwritten older positions.
        self._furthest = 0

    def __enter__(self) -> ChatProcess:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def generation(self) -> Generation:
        """How the program is called."""
        return self._generator.generation

    def generate(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None = None,
    ) -> GenerationOutput:
        """Does what `TextGenerator.generate` does; calls `on_token` in this thread."""
        arguments = (prompt, new_tokens, sampling, on_token, stop)
        try:
            return self._answer(self._talk or self._start(), *arguments)
        except _IdleExitError:
            return self._answer(self._start(), *arguments)

    def _answer(
        self,
        talk: Talk,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None,
    ) -> GenerationOutput:
        cached = cached_prefix(self._cache, prompt)
        rewind = self.generation.rewind
        if rewind is not None and self._furthest - cached > rewind:
            cached = 0  # the ring buffer cannot be set back so far
        self._cache = list(prompt[:cached])
        reader = _AnswerReader(prompt, cached, self._cache, on_token)
        try:
            talk.write_line(answer_line(cached, new_tokens, sampling, prompt[cached:]))
            self._read_answer(talk, reader, stop)
        except BaseException:
            self._end()  # the rest of the answer may still come
            raise
        finally:
            self._furthest = max(self._furthest if cached else 0, len(self._cache))
        if reader.end and reader.end.reason == "stop":
            raise Interrupted
        return reader.output()

    def _read_answer(self, talk: Talk, reader: _AnswerReader, stop: cancel.Flag | None) -> None:
        """Reads an answer to its end, and requests that end when `stop` is set."""
        deadline = time.monotonic() + self._generator.recipe.benchmark.timeout_s
        requested = False
        while reader.end is None:
            reader.take(self._read_line(talk, deadline))
            if stop is not None and stop.is_set() and not requested:
                talk.write_line(STOP)
                requested = True

    def _start(self) -> Talk:
        """Starts the runner, and waits until it has loaded the program."""
        request = request_lines(
            self.generation.methods, Sampling(), self.generation.stop_ids, [],
            rewind=self.generation.rewind, static_cache=self.generation.static_cache,
        )  # fmt: skip
        self._generator.put(_REQUEST, request)
        arguments = listening_arguments(
            PROGRAM, _REQUEST, idle_timeout_s=self._idle_timeout_s, threads=self._generator.threads
        )
        folder = cast(ConversingRun, self._generator.folder)
        deadline = time.monotonic() + self._generator.recipe.benchmark.timeout_s
        self._cache, self._furthest = [], 0
        try:
            talk = self._stack.enter_context(folder.converse(arguments))
            if (line := self._read_line(talk, deadline)) != READY:
                raise _unexpected(line)
        except BaseException:
            self._end()
            raise
        self._talk = talk
        return talk

    def _read_line(self, talk: Talk, deadline: float) -> str:
        try:
            line = talk.read_line(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            line = None
        if line is not None:
            return line
        outcome = talk.end()
        if self._generator.is_failure(outcome):
            raise self._generator.failure(outcome)
        raise _IdleExitError("the runner ended before its answer did")

    def _end(self) -> None:
        self._talk = None
        self._stack.close()


class _IdleExitError(RunError):
    """The runner exited by itself after a time without input."""


class _AnswerReader:
    """Parses the lines of an answer to a prompt, and keeps the list of cached ids up to date."""

    def __init__(
        self,
        prompt: Sequence[int],
        cached: int,
        cache: list[int],
        on_token: Callable[[int], None],
    ) -> None:
        self.end: End | None = None
        self._prompt, self._cached, self._cache = prompt, cached, cache
        self._on_token = on_token
        self._tokens: list[Token] = []

    def take(self, line: str) -> None:
        """Takes the next line."""
        try:
            event = parse_event(line)
        except ValueError as error:
            raise _unexpected(line) from error
        match event:
            case PrefillProgress(tokens=tokens):
                self._cache[:] = self._prompt[: self._cached + tokens]
            case Token(id=token):
                # The last one is not in the cache: it has not been fed back.
                self._cache += [before.id for before in self._tokens[-1:]]
                self._tokens.append(event)
                self._on_token(token)
            case End():
                self.end = event

    def output(self) -> GenerationOutput:
        """Returns the complete answer."""
        if not self._tokens or self.end is None:
            raise RunError("the runner ended an answer without a token")
        first, *further = self._tokens
        return GenerationOutput(
            prefilled=len(self._prompt) - self._cached,
            first_token_ms=first.took_ms,
            token_ms=tuple(token.took_ms for token in further),
            token_ids=tuple(token.id for token in self._tokens),
            stopped=self.end.reason == "stop_token",
        )


def cached_prefix(cache: Sequence[int], prompt: Sequence[int]) -> int:
    """Return how many tokens of a prompt are cached; its last one must be computed for logits."""
    pairs = zip(cache, prompt[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _unexpected(line: str) -> RunError:
    return RunError(f"the runner printed {line[:80]!r}, which is not part of an answer")


Message = dict[str, str]


@dataclass
class Conversation:
    """The messages of a chat, rendered with the model's chat template.

    `messages` alternate between user and assistant; `system` comes before them and is not one.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    generation: Generation
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, line: str, new_tokens: int) -> tuple[tuple[int, ...], str]:
        """Adds a line of the user; drops the oldest messages if the context is full.

        Returns the prompt, and a sentence about the dropped messages, which is empty if there are
        none. Raises UsageError, and changes nothing, if this line alone does not fit the context
        or the template refuses it. `new_tokens` is the most that the answer may have.
        """
        messages = [*self.messages, {"role": "user", "content": line}]
        prompt = self._ids(messages)
        if len(prompt) + min(new_tokens, self.generation.context // 4) > self.generation.context:
            messages, prompt = self._shortened(messages, prompt)
        remaining_context(self.generation, len(prompt))
        dropped = (1 + len(self.messages) - len(messages)) // 2
        self.messages = messages
        return prompt, self._dropped(dropped) if dropped else ""

    def answer(self, text: str) -> None:
        """Adds the model's answer to the last line."""
        self.messages.append({"role": "assistant", "content": text})

    def clear(self) -> None:
        """Removes all messages."""
        self.messages = []

    def _shortened(
        self, messages: list[Message], prompt: tuple[int, ...]
    ) -> tuple[list[Message], tuple[int, ...]]:
        """Drops the oldest messages until half of the context is free.

        All that follows has to be computed again, so this must not happen with every line.
        """
        while len(messages) > 1 and len(prompt) > self.generation.context // 2:
            messages = messages[2:]
            prompt = self._ids(messages)
        return messages, prompt

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        before = [{"role": "system", "content": self.system}] if self.system else []
        return self.tokenizer.encode_rendered(self.template.render([*before, *messages]))

    def _dropped(self, pairs: int) -> str:
        what = "line and its answer" if pairs == 1 else f"{count(pairs, 'line')} with their answers"
        return (
            f"dropped the oldest {what}: the context of {self.generation.context:,} tokens is full "
            f"({more_context(self.generation)})"
        )
