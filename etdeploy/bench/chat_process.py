"""A conversation with one process, whose cache keeps what was said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import cast

from etdeploy.bench.text_generator import PROGRAM, Speaker, Spoken, more_context, room
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

FORGOTTEN_S = 3600
"""A runner to which nobody speaks for so long ends itself; the next line starts another."""
_REQUEST = "request.txt"


class Dialogue:
    """A program that stays loaded from prompt to prompt.

    Of a prompt, only what follows the part that is in the cache is computed.

    Args:
        speaker: What it has in common with a program that is started for each prompt; its run can
            be talked with.
        forgotten_s: As FORGOTTEN_S.
    """

    def __init__(self, speaker: Speaker, forgotten_s: int = FORGOTTEN_S) -> None:
        self._speaker = speaker
        self._forgotten_s = forgotten_s
        self._held = ExitStack()
        self._talk: Talk | None = None
        # Ids whose keys and values the program has.
        self._cache: list[int] = []
        # The most that it had since it was empty: a ring of the cache has forgotten what is far
        # before.
        self._furthest = 0

    def __enter__(self) -> Dialogue:
        self._started()
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
        return self._speaker.generation

    def say(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None = None,
    ) -> Spoken:
        """Does what `Speaker.say` does; calls `on_token` in this thread.

        Raises:
            RunError: The runner crashed, refused or took too long.
            DeviceError: The device went away.
            Interrupted: `stop` was raised, and the answer has ended, or the whole run was stopped.
        """
        asked = (prompt, new_tokens, sampling, on_token, stop)
        try:
            return self._answer(self._talk or self._started(), *asked)
        except _ForgottenError:
            return self._answer(self._started(), *asked)

    def _answer(
        self,
        talk: Talk,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None,
    ) -> Spoken:
        known = self._within_reach(kept(self._cache, prompt))
        self._cache = list(prompt[:known])
        told = _Told(prompt, known, self._cache, on_token)
        try:
            talk.write_line(answer_line(known, new_tokens, sampling, prompt[known:]))
            self._listen(talk, told, stop)
        except BaseException:
            self._end()  # nobody knows what it says next
            raise
        finally:
            self._furthest = max(self._furthest if known else 0, len(self._cache))
        if told.end and told.end.reason == "stop":
            raise Interrupted
        return told.spoken()

    def _within_reach(self, known: int) -> int:
        """Where the program goes on: at a position that it can be set back to, or anew."""
        rewind = self.generation.rewind
        return known if rewind is None or self._furthest - known <= rewind else 0

    def _listen(self, talk: Talk, told: _Told, stop: cancel.Flag | None) -> None:
        """Hears an answer to its end, which a stop brings nearer."""
        deadline = time.monotonic() + self._speaker.recipe.benchmark.timeout_s
        asked = False
        while told.end is None:
            told.take(self._hear(talk, deadline))
            if stop is not None and stop.is_set() and not asked:
                talk.write_line(STOP)
                asked = True

    def _started(self) -> Talk:
        """Starts the runner, and waits until it has loaded the program."""
        made = self.generation
        request = request_lines(made.methods, Sampling(), made.stop_ids, [], rewind=made.rewind)
        self._speaker.put(_REQUEST, request)
        arguments = listening_arguments(
            PROGRAM, _REQUEST, forgotten_s=self._forgotten_s, threads=self._speaker.threads
        )
        folder = cast(ConversingRun, self._speaker.folder)
        deadline = time.monotonic() + self._speaker.recipe.benchmark.timeout_s
        self._cache, self._furthest = [], 0
        try:
            talk = self._held.enter_context(folder.converse(arguments))
            if (line := self._hear(talk, deadline)) != READY:
                raise _strange(line)
        except BaseException:
            self._end()
            raise
        self._talk = talk
        return talk

    def _hear(self, talk: Talk, deadline: float) -> str:
        try:
            line = talk.read_line(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            line = None
        if line is not None:
            return line
        outcome = talk.end()
        if self._speaker.is_failure(outcome):
            raise self._speaker.failure(outcome)
        raise _ForgottenError("the runner ended before its answer did")

    def _end(self) -> None:
        self._talk = None
        self._held.close()


class _ForgottenError(RunError):
    """The runner ended by itself: nobody had spoken to it."""


class _Told:
    """Takes the lines of an answer.

    Args:
        prompt: All of it.
        known: How much of it was in the cache.
        cache: Ids in the cache; gets those that come.
        on_token: Called with each new token.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        known: int,
        cache: list[int],
        on_token: Callable[[int], None],
    ) -> None:
        self.end: End | None = None
        self._prompt, self._known, self._cache = prompt, known, cache
        self._on_token = on_token
        self._tokens: list[Token] = []

    def take(self, line: str) -> None:
        """The next line."""
        try:
            told = parse_event(line)
        except ValueError as error:
            raise _strange(line) from error
        match told:
            case PrefillProgress(tokens=tokens):
                self._cache[:] = self._prompt[: self._known + tokens]
            case Token(id=token):
                # The last one is not in the cache: it has not been fed back.
                self._cache += [before.id for before in self._tokens[-1:]]
                self._tokens.append(told)
                self._on_token(token)
            case End():
                self.end = told

    def spoken(self) -> Spoken:
        """All that was told."""
        if not self._tokens or self.end is None:
            raise RunError("the runner ended an answer without a token")
        first, *further = self._tokens
        return Spoken(
            taken=len(self._prompt) - self._known,
            first_token_ms=first.took_ms,
            token_ms=tuple(token.took_ms for token in further),
            token_ids=tuple(token.id for token in self._tokens),
            stopped=self.end.reason == "stop_token",
        )


def kept(cache: Sequence[int], prompt: Sequence[int]) -> int:
    """How much of a prompt need not be computed; its last token is, for its logits."""
    pairs = zip(cache, prompt[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _strange(line: str) -> RunError:
    return RunError(f"the runner printed {line[:80]!r} where it tells of an answer")


Message = dict[str, str]


@dataclass
class Conversation:
    """What was said, in the form of the model's own chat template.

    Attributes:
        tokenizer: The model's own.
        template: The model's own.
        generation: How the program is called.
        system: What the model is told before the conversation.
        messages: What was said so far and is not forgotten, without `system`; what the model said
            follows each line.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    generation: Generation
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, line: str, new_tokens: int) -> tuple[tuple[int, ...], str]:
        """Adds a line; where the context is full, the oldest ones are forgotten.

        Args:
            line: What the user says.
            new_tokens: The most that an answer has.

        Returns:
            The prompt, and what was forgotten, for people; empty if nothing was.

        Raises:
            UsageError: The context has no room for this line alone, or the template refuses it.
                Nothing is added or forgotten then.
        """
        messages = [*self.messages, {"role": "user", "content": line}]
        prompt = self._ids(messages)
        if len(prompt) + min(new_tokens, self.generation.context // 4) > self.generation.context:
            messages, prompt = self._shortened(messages, prompt)
        room(self.generation, len(prompt))
        turns = (1 + len(self.messages) - len(messages)) // 2
        self.messages = messages
        return prompt, self._forgotten(turns) if turns else ""

    def answer(self, text: str) -> None:
        """Adds what the model said to the last line."""
        self.messages.append({"role": "assistant", "content": text})

    def clear(self) -> None:
        """Forgets everything that was said."""
        self.messages = []

    def _shortened(
        self, messages: list[Message], prompt: tuple[int, ...]
    ) -> tuple[list[Message], tuple[int, ...]]:
        """Leaves out the oldest turns until half of the context is free.

        What follows them has to be computed anew, so that is not to happen with every line.
        """
        while len(messages) > 1 and len(prompt) > self.generation.context // 2:
            messages = messages[2:]
            prompt = self._ids(messages)
        return messages, prompt

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        before = [{"role": "system", "content": self.system}] if self.system else []
        return self.tokenizer.encode_rendered(self.template.render([*before, *messages]))

    def _forgotten(self, turns: int) -> str:
        what = (
            "line and its answer are" if turns == 1 else f"{count(turns, 'line')} and answers are"
        )
        return (
            f"the oldest {what} forgotten: the context of {self.generation.context:,} tokens is "
            f"full ({more_context(self.generation)})"
        )
