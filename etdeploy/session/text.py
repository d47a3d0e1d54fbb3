"""A text while it is generated, and what is known of it afterwards."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from etdeploy.bench.text_generator import Answer, GenerationOutput, TextGenerator
from etdeploy.core import cancel
from etdeploy.core.console import count
from etdeploy.core.errors import Interrupted, UsageError
from etdeploy.core.values import Stop
from etdeploy.program.generation import Generation
from etdeploy.program.tokenizer import Tokenizer
from etdeploy.runner.generation import Sampling, Token

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# No token of a vocabulary has as many characters.
_LONGEST_TOKEN = 1024


@dataclass(frozen=True)
class Timings:
    """Times of a session's last call; 0 or None for what it did not do.

    Attributes:
        load_ms: From the start of the process until the program was loaded, as this machine saw it.
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that were in the cache.
        first_token_ms: From the start of the prefill until the first token was chosen.
        prefill_tokens_per_s: Tokens of the prompt that were computed, by that time.
        decode_tokens_per_s: Further tokens by their times.
        token_ms: Time of each further token, on the device.
        encode_ms: Of an encoder.
        run_ms: Of a method of a program that generates no text.
    """

    load_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token_ms: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float | None = None
    token_ms: tuple[float, ...] = ()
    encode_ms: float | None = None
    run_ms: float | None = None


@dataclass(frozen=True)
class ContinuationScore:
    """How probable a continuation is.

    Attributes:
        token_ids: Those of the continuation.
        log_probabilities: Natural logarithm of each one's probability, float64 of shape (tokens,).
        best_ids: The most probable token in each one's place, int64 of shape (tokens,).
        best_log_probabilities: The same of these, float64 of shape (tokens,).
    """

    token_ids: tuple[int, ...]
    log_probabilities: NDArray[np.float64]
    best_ids: NDArray[np.int64]
    best_log_probabilities: NDArray[np.float64]

    @property
    def is_greedy(self) -> NDArray[np.bool_]:
        """Whether each token is the most probable one, of shape (tokens,)."""
        found: NDArray[np.bool_] = self.best_ids == self.token_ids
        return found

    @property
    def log_probability(self) -> float:
        """Of the whole continuation."""
        return float(self.log_probabilities.sum())


@dataclass
class TextRecord:
    """What is known of a text so far; `answer` is None until it has ended."""

    token_ids: list[int] = field(default_factory=list)
    answer: Answer | None = None


class GeneratedText(Iterator[str]):
    """The pieces of a text, as they are generated.

    Until it is exhausted or closed, the session does nothing else. Leaving a loop closes it, unless
    something else refers to it; then `with session.generate(...) as text` does.
    """

    def __init__(self, record: TextRecord, pieces: Generator[str, None, None]) -> None:
        self._record = record
        self._pieces = pieces

    @property
    def token_ids(self) -> list[int]:
        """The tokens so far."""
        return self._record.token_ids

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> GeneratedText:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, if the text has not ended."""
        self._pieces.close()

    @property
    def answer(self) -> Answer:
        """Counts, times and the reason of the end.

        Raises:
            UsageError: The text has not ended.
        """
        if self._record.answer is None:
            raise UsageError(
                "the text has not ended", remedy="Iterate over it to its end, or close it first."
            )
        return self._record.answer


def is_count(value: object) -> bool:
    """Whether it is a whole number from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def require_short(text: str, generation: Generation) -> None:
    """Refuse a text that cannot fit before a tokenizer works on it for minutes."""
    most = _LONGEST_TOKEN * generation.context
    if len(text) > most:
        raise UsageError(
            f"the prompt has {count(len(text), 'character')}, and the program's context "
            f"{generation.context:,} tokens",
            remedy="Shorten it.",
        )


def require_ids(ids: Sequence[int], generation: Generation) -> tuple[int, ...]:
    """Return token ids, if the vocabulary has all of them, and they fit the context."""
    if len(ids) > generation.context:
        raise UsageError(
            f"the prompt has {count(len(ids), 'token')}, and the program's context "
            f"{generation.context:,}",
            remedy="Shorten it.",
        )
    try:
        found = tuple(int(token) for token in ids)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a prompt is text or token ids: {error}") from error
    unknown = [token for token in found if not 0 <= token < generation.vocabulary]
    if unknown:
        raise UsageError(
            f"the prompt has the id {unknown[0]}, and the vocabulary has "
            f"{generation.vocabulary:,} tokens"
        )
    return found


def prompt_ids(tokenizer: Tokenizer | None, text: str) -> tuple[int, ...]:
    """Return a prompt's token IDs; without a tokenizer, the prompt has to consist of them."""
    if tokenizer:
        return tokenizer.encode(text)
    ids = parse_ids(text)
    if ids is None:
        raise UsageError(
            f"the model has no tokenizer, so a prompt consists of token IDs, not {text[:40]!r}",
            remedy="Pass numbers: --prompt '1 15 27', or a list of them: [1, 15, 27]",
        )
    return ids


def parse_ids(text: str) -> tuple[int, ...] | None:
    """Return the numbers that a text consists of; None if it has anything else."""
    try:
        return tuple(int(word) for word in text.replace(",", " ").split())
    except ValueError:
        return None


def stream_single(
    generator: TextGenerator,
    prompt: Sequence[int],
    new_tokens: int,
    sampling: Sampling,
    flag: cancel.Flag,
    stop: Stop | None,
) -> Generator[Token, None, GenerationOutput]:
    """Do what `ChatProcess.stream` does with a process for this prompt alone.

    A thread waits for the device; closing the generator ends the process. Tokens have no times
    until the end.
    """
    tokens: queue.SimpleQueue[int | GenerationOutput | BaseException] = queue.SimpleQueue()
    own = cancel.Flag(flag)
    came: list[int] = []

    def body() -> None:
        try:
            with cancel.bound(own):
                tokens.put(generator.generate(prompt, new_tokens, sampling, tokens.put, own))
        except BaseException as error:  # raised again by the caller
            tokens.put(error)

    thread = threading.Thread(target=body, name="etdeploy text", daemon=True)
    thread.start()
    try:
        while isinstance(item := tokens.get(), int):
            came.append(item)
            yield Token(id=item, took_ms=0.0)
            if stop is not None and stop.is_set():
                own.set()
    finally:
        own.set()
        thread.join()
    if isinstance(item, GenerationOutput):
        return item
    if isinstance(item, Interrupted) and not flag.is_set():
        return GenerationOutput(
            prefilled=len(prompt), first_token_ms=0.0, token_ms=(), token_ids=tuple(came),
            stopped=False, interrupted=True,
        )  # fmt: skip
    raise item
