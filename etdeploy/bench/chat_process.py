"""A language model that stays loaded in one process on the device, with one cache."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypeVar

from etdeploy.bench.program_run import (
    IDLE_TIMEOUT_S,
    PROGRAM,
    IdleExitError,
    ListeningProcess,
    unexpected_line,
)
from etdeploy.bench.snapshot import Snapshot, reachable_prefix
from etdeploy.bench.text_generator import (
    GenerationOutput,
    TextGenerator,
)
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, RunError
from etdeploy.core.values import Stop
from etdeploy.program.generation import Generation
from etdeploy.runner.generation import (
    LOADED,
    REMOVED,
    SAVED,
    STOP,
    CallCounts,
    End,
    FeedEnd,
    PrefillProgress,
    Sampling,
    Token,
    TokenScore,
    answer_line,
    feed_line,
    listening_arguments,
    load_line,
    logits_line,
    parse_event,
    prompt_bytes,
    remove_line,
    request_lines,
    save_line,
    score_line,
)

_REQUEST, _LOGITS, _TOKENS = "request.txt", "logits.bin", "cached-tokens.bin"
_SENT = "sent.bin"
T = TypeVar("T")


class ChatProcess(ListeningProcess):
    """A program that stays loaded between prompts, so only new tokens of a prompt are computed.

    Attributes:
        cached: Tokens whose keys and values are in the program's cache.
        furthest: The longest that it was since it was empty: a ring buffer has overwritten older
            positions.
    """

    def __init__(
        self,
        generator: TextGenerator,
        idle_timeout_s: int = IDLE_TIMEOUT_S,
        flag: cancel.Flag | None = None,
    ) -> None:
        super().__init__(generator, idle_timeout_s, flag)
        self._generator = generator
        self.cached: list[int] = []
        self.furthest = 0

    def __enter__(self) -> ChatProcess:
        self._start()
        return self

    @property
    def generation(self) -> Generation:
        """How the program is called."""
        return self._generator.generation

    def stream(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        stop: Stop | None = None,
    ) -> Generator[Token, None, GenerationOutput]:
        """Generate a text, and return it whole at the end.

        When the generator is closed or `stop` is set, the runner stops, and stays loaded.
        """

        def line(cached: int) -> str:
            return answer_line(cached, new_tokens, sampling, prompt[cached:])

        reader = yield from self._again(lambda: self._exchange(line, prompt, stop))
        output = reader.output()
        found = self._generator.speculated(reader.end or CallCounts(), len(output.token_ms))
        return output.model_copy(update={"speculation": found})

    def feed(self, tokens: Sequence[int], stop: Stop | None = None) -> None:
        """Put all tokens of a text into the cache.

        Raises:
            Interrupted: It was stopped; what was computed stays in the cache.
        """

        def line(cached: int) -> str:
            return feed_line(cached, tokens[cached:])

        # All of them are in the cache, and no logits are wanted.
        if self.reusable((*tokens, 0)) < len(tokens):
            self._exhaust(line, tokens, stop)

    def logits(self, tokens: Sequence[int], count: int, stop: Stop | None = None) -> array[float]:
        """Return the logits after each of the last `count` tokens, row by row."""

        def line(cached: int) -> str:
            return logits_line(cached, count, _LOGITS, tokens[cached:])

        self._exhaust(line, tokens, stop, most_cached=len(tokens) - count)
        self._generator.folder.pull(_LOGITS, self._generator.here / _LOGITS)
        return array("f", (self._generator.here / _LOGITS).read_bytes())

    def score(
        self, tokens: Sequence[int], count: int, stop: Stop | None = None
    ) -> tuple[TokenScore, ...]:
        """Return how probable each of the last `count` tokens is after those before it."""

        def line(cached: int) -> str:
            return score_line(cached, count, tokens[cached:])

        # Before the first of them, at least one token has to be taken again.
        reader = self._exhaust(line, tokens, stop, most_cached=len(tokens) - count - 1)
        if len(reader.scores) != count:
            raise RunError(f"the runner scored {len(reader.scores)} tokens of {count}")
        return tuple(reader.scores)

    def save_image(self, name: str) -> None:
        """Save the cache in a file of the run's folder."""
        self._request(save_line(name), SAVED)

    def load_image(self, name: str, tokens: Sequence[int], furthest: int) -> None:
        """Replace the cache by that of a file of the run's folder."""
        self._generator.put(_TOKENS, prompt_bytes(tokens))
        self._request(load_line(furthest, _TOKENS, name), LOADED)
        self.cached, self.furthest = list(tokens), furthest

    def remove_image(self, name: str) -> None:
        """Remove a file of the run's folder."""
        self._request(remove_line(name), REMOVED)

    def load_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the cache by that of a file on this machine; nothing is done for an empty one."""
        if snapshot.header.tokens:
            self._generator.put(_SENT, snapshot.parts())
            self.load_image(_SENT, snapshot.header.tokens, snapshot.header.furthest)
            self.remove_image(_SENT)

    def pull_image(self, name: str) -> Path:
        """Fetch a file of the run's folder; it is valid until the next call."""
        image = self._generator.here / name
        self._generator.folder.pull(name, image)
        return image

    def reusable(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt need not be computed again."""
        return reachable_prefix(self.cached, self.furthest, prompt, self.generation.rewind)

    def _again(self, attempt: Callable[[], Generator[Token, None, T]]) -> Generator[Token, None, T]:
        """Begin anew where the runner had exited after a time without input."""
        was_running, came = self.is_running, False
        tokens = attempt()
        try:
            while True:
                token = next(tokens)
                came = True
                yield token
        except StopIteration as end:
            found: T = end.value
            return found
        except IdleExitError:
            if came or not was_running:
                raise
        finally:
            tokens.close()
        return (yield from attempt())

    def _exhaust(
        self,
        line: Callable[[int], str],
        prompt: Sequence[int],
        stop: Stop | None,
        most_cached: int | None = None,
    ) -> _AnswerReader:
        """Ask for what gives no tokens; raise Interrupted if it was stopped."""
        tokens = self._again(lambda: self._exchange(line, prompt, stop, most_cached))
        while True:
            try:
                next(tokens)
            except StopIteration as end:
                reader: _AnswerReader = end.value
                break
        if reader.is_stopped:
            raise Interrupted
        return reader

    def _exchange(
        self,
        line: Callable[[int], str],
        prompt: Sequence[int],
        stop: Stop | None,
        most_cached: int | None = None,
    ) -> Generator[Token, None, _AnswerReader]:
        """Send the line for a prompt of which so many tokens are cached, and read to its end."""
        talk = self._talk or self._start()
        cached = self.reusable(prompt)
        if most_cached is not None and cached > most_cached:
            cached = self.reusable(prompt[: max(most_cached, 0) + 1])
        self.cached = list(prompt[:cached])
        reader = _AnswerReader(prompt, cached, self.cached)
        requested = stop is not None and stop.is_set()
        try:
            # In one write: a small model generates many tokens between two of them.
            talk.write_line(f"{line(cached)}\n{STOP}" if requested else line(cached))
            while not reader.has_ended:
                if stop is not None and stop.is_set() and not requested:
                    talk.write_line(STOP)
                    requested = True
                # Whoever takes the tokens may take their time; the runner may not.
                token = reader.take(self._read_line(talk, self._deadline()))
                if token is not None:
                    yield token
        except GeneratorExit:
            self._finish(reader)
            raise
        except BaseException:
            self.end()  # the rest of the answer may still come
            raise
        finally:
            end = self._generator.furthest(len(self.cached))
            self.furthest = max(self.furthest if cached else 0, end)
        return reader

    def _finish(self, reader: _AnswerReader) -> None:
        """Let the runner stop an answer that nobody waits for."""
        try:
            if self._talk and not reader.has_ended:
                self._talk.write_line(STOP)
            while self._talk and not reader.has_ended:
                reader.take(self._read_line(self._talk, self._deadline()))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the process; the next request starts another one, with an empty cache."""
        super().end()
        self.cached, self.furthest = [], 0

    def _arguments(self) -> tuple[str, ...]:
        request = request_lines(
            self.generation.methods, Sampling(), self.generation.stop_ids, [],
            rewind=self.generation.rewind, static_cache=self.generation.static_cache,
            speculation=self._generator.speculation, draft=self._generator.draft,
            load_mode=self.generation.load_mode,
        )  # fmt: skip
        self._generator.put(_REQUEST, request)
        self.cached, self.furthest = [], 0
        return listening_arguments(
            PROGRAM, _REQUEST, idle_timeout_s=self._idle_timeout_s, threads=self._generator.threads
        )


class _AnswerReader:
    """Parses the lines of an answer to a prompt, and keeps the list of cached ids up to date."""

    def __init__(self, prompt: Sequence[int], cached: int, cache: list[int]) -> None:
        self.end: End | None = None
        self.scores: list[TokenScore] = []
        self._fed: FeedEnd | None = None
        self._prompt, self._cached, self._cache = prompt, cached, cache
        self._tokens: list[Token] = []

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes."""
        return self.end is not None or self._fed is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a line stopped it."""
        if self._fed:
            return self._fed.stopped
        return self.end is not None and self.end.reason == "stop"

    def take(self, line: str) -> Token | None:
        """Takes the next line; returns the token that it has."""
        try:
            event = parse_event(line)
        except ValueError as error:
            raise unexpected_line(line) from error
        match event:
            case PrefillProgress(tokens=tokens):
                self._cache[:] = self._prompt[: self._cached + tokens]
            case Token():
                # The last one is not in the cache: it has not been fed back.
                self._cache += [before.id for before in self._tokens[-1:]]
                self._tokens.append(event)
                return event
            case TokenScore():
                self.scores.append(event)
            case End():
                self.end = event
            case FeedEnd():
                self._fed = event
        return None

    def output(self) -> GenerationOutput:
        """Returns the complete answer."""
        if self.end is None or not (self._tokens or self.is_stopped):
            raise RunError("the runner ended an answer without a token")
        times = [token.took_ms for token in self._tokens] or [0.0]
        return GenerationOutput(
            prefilled=len(self._prompt) - self._cached,
            first_token_ms=times[0],
            token_ms=tuple(times[1:]),
            token_ids=tuple(token.id for token in self._tokens),
            stopped=self.end.reason == "stop_token",
            interrupted=self.is_stopped,
        )
