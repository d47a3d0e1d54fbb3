"""A program on a device that is given prompts, and whose tokens are read as they are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol, cast

from etdeploy.bench.diagnosis import TEXT, run_error
from etdeploy.bench.sweep import choose_threads
from etdeploy.bench.units import duration
from etdeploy.core import cancel
from etdeploy.core.console import count
from etdeploy.core.errors import Interrupted, RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.values import Value
from etdeploy.devices.base import Bundle, Device, DeviceState, RunOutcome, StreamingRun
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.generation import Generation
from etdeploy.program.tokenizer import TextStream, Tokenizer
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import (
    GenerationResults,
    PromptRun,
    Sampling,
    generation_arguments,
    prompt_bytes,
    request_lines,
    tokens_per_s,
)
from etdeploy.runner.protocol import load_results_as

PROGRAM = f"{{bundle}}/{PROGRAM_FILE}"
"""The program, as a runner on the device sees it."""
_REQUEST, _PROMPT, _RESULTS = "request.txt", "prompt.bin", "results.json"


@dataclass(frozen=True)
class Speaker:
    """A program that is ready to generate.

    Attributes:
        device: It is locked for this run.
        folder: Of the run on the device.
        generation: How the program is called.
        recipe: Gives the time limit and the number of threads.
        log: Gets what the runner says, for messages.
        here: A folder on this machine for what goes there and comes back.
    """

    device: Device
    folder: StreamingRun
    generation: Generation
    recipe: Recipe
    log: Path
    here: Path

    def say(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None = None,
    ) -> Spoken:
        """Generates once, in a process of its own.

        Args:
            prompt: Token ids.
            new_tokens: The most that are generated; they fit the context.
            sampling: How tokens are chosen.
            on_token: Called with each new token as soon as it is chosen, perhaps in another thread;
                what it raises ends the generation and is raised here.
            stop: Ends it, and nothing else, when it is raised; one of its own by default.

        Raises:
            RunError: The runner crashed, refused, took too long or left no usable results.
            DeviceError: The device went away.
            Interrupted: It was stopped; the runner on the device has ended.
        """
        self._send(prompt, new_tokens, sampling)
        arguments = generation_arguments(
            PROGRAM, _REQUEST, _RESULTS, threads=self.threads, stream=True
        )
        tokens = _Tokens(on_token, stop or cancel.Flag(cancel.current()))
        limit_s = self.recipe.benchmark.timeout_s
        try:
            with cancel.bound(tokens.stop):
                outcome = self.folder.stream(arguments, limit_s, tokens.take)
                if self.is_failure(outcome):
                    raise self.failure(outcome)
        except Interrupted:
            tokens.raise_failure()
            raise
        tokens.raise_failure()
        self.folder.pull(_RESULTS, self.here / _RESULTS)
        made = load_results_as(GenerationResults, self.here / _RESULTS).generation.runs[0]
        return Spoken(
            taken=len(prompt),
            first_token_ms=made.first_token_ms,
            token_ms=made.token_ms,
            token_ids=made.token_ids,
            stopped=made.stopped,
        )

    def _send(self, prompt: Sequence[int], new_tokens: int, sampling: Sampling) -> None:
        point = PromptRun(name="prompt", new_tokens=new_tokens, path=_PROMPT)
        made = self.generation
        request = request_lines(made.methods, sampling, made.stop_ids, [point], rewind=made.rewind)
        self.put(_REQUEST, request)
        self.put(_PROMPT, prompt_bytes(prompt))

    def put(self, name: str, content: str | bytes) -> None:
        """Writes a file in the run's folder."""
        write_atomic(self.here / name, content)
        self.folder.put(self.here / name, name)

    @property
    def threads(self) -> int:
        """How many the recipe wants here; 0 for ExecuTorch's choice."""
        wanted = self.recipe.runtime.threads
        if not isinstance(wanted, int | str):
            return 0
        state = self.device.state() if isinstance(wanted, str) else DeviceState()
        return choose_threads(wanted, state).numbers[0]

    def is_failure(self, outcome: RunOutcome) -> bool:
        """Whether the runner failed; what it said goes to the log.

        Raises:
            Interrupted: A stop ended it, which is not its fault.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.log, outcome.stderr)
        if outcome.exit_code != 0:
            cancel.checkpoint()
        return outcome.exit_code != 0

    def failure(self, outcome: RunOutcome) -> RunError:
        """The error for a runner that failed."""
        return run_error(
            outcome,
            TEXT,
            self.recipe,
            self.device.name,
            self.log,
            self.device.capabilities,
            iterations=1,
        )


class _Tokens:
    """Hands over the tokens in a runner's lines; a failure ends the runner."""

    def __init__(self, on_token: Callable[[int], None], stop: cancel.Flag) -> None:
        self.stop = stop
        self._on_token = on_token
        self._failure: Exception | None = None

    def take(self, line: str) -> None:
        """The next line."""
        if self._failure is not None:
            return
        try:
            self._on_token(int(line))
        except ValueError:
            self._fail(RunError(f"the runner printed {line[:80]!r} where a token id belongs"))
        except Exception as error:  # is raised by the thread that waits
            self._fail(error)

    def raise_failure(self) -> None:
        """Raises what went wrong with a token."""
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.stop.set()


class Speaks(Protocol):
    """A program that is ready to generate, in one process or in several."""

    @property
    def generation(self) -> Generation: ...

    def say(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None = None,
    ) -> Spoken: ...


@contextmanager
def opened_speaker(
    device: Device, bundle: Bundle, generation: Generation, recipe: Recipe, log: Path
) -> Iterator[Speaker]:
    """A program that was pushed, ready for prompts; its run's folder goes with the block.

    Args:
        device: Locked for this run.
        bundle: With the program and its runner.
        generation: How the program is called.
        recipe: Of the program.
        log: Gets what the runner says.

    Raises:
        UsageError: The device does not hand over output as it comes.
        DeviceError: The device went away.
    """
    if not device.capabilities.streams:
        raise UsageError(
            f"{device.name} does not hand over what a program prints while it runs",
            remedy="Name another device (etdeploy devices), or measure there: etdeploy run",
        )
    device.end_leftovers()
    started = datetime.now(timezone.utc)
    run_id = f"{started:%Y%m%d-%H%M%S-%f}-text"
    with TemporaryDirectory(prefix="etdeploy-") as here, device.open_run(bundle, run_id) as folder:
        streaming = cast(StreamingRun, folder)
        yield Speaker(device, streaming, generation, recipe, log, Path(here))


Stopped = Literal["stop_token", "max_new_tokens", "context_full"]


class Spoken(Value):
    """What a program generated after a prompt.

    Attributes:
        taken: Tokens of the prompt that were computed; those before them were in the cache.
        first_token_ms: From the start of the prefill until the first token was chosen.
        token_ms: Time of each further token.
        token_ids: All new tokens, with the one that ended the text.
        stopped: Whether a stop token ended it.
    """

    taken: int
    first_token_ms: float
    token_ms: tuple[float, ...]
    token_ids: tuple[int, ...]
    stopped: bool


class Answer(Value):
    """What `etdeploy generate --json` prints; docs/language-models.md defines the rates.

    Attributes:
        prompt_tokens: Of the prompt, with those that the tokenizer adds.
        cached_tokens: Those of them that were in the cache already.
        token_ids: All new tokens, with the one that ended the text.
        text: Of them; null for a model without a tokenizer.
        ttft_ms: From the start of the prefill until the first token was chosen.
        prefill_tokens_per_s: The prompt's other tokens by that time.
        decode_tokens_per_s: Those after the first by the time that they took; null for
            none.
        stopped: Why it ended: a stop token, as many tokens as were asked for, or a full context.
        seed: Of the random choice, with which the text comes again; null where nothing is random.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    token_ids: tuple[int, ...]
    text: str | None
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    stopped: Stopped
    seed: int | None = None


def room(generation: Generation, prompt_tokens: int) -> int:
    """How many new tokens fit after a prompt; the last one is not fed back.

    Raises:
        UsageError: None does, or the prompt has no token.
    """
    if not prompt_tokens:
        raise UsageError("the prompt has no token", remedy="Give it a text: --prompt 'Once upon'")
    fitting = generation.context - prompt_tokens + 1
    if fitting > 0:
        return fitting
    raise UsageError(
        f"{count(prompt_tokens, 'token')} of prompt do not fit the program's context of "
        f"{generation.context:,}",
        remedy="Shorten it; or, if the model has so many positions: "
        f"{more_context(generation, prompt_tokens)}",
    )


def more_context(generation: Generation, prompt_tokens: int = 0) -> str:
    """The option that exports a program with twice the context, or as often as a prompt needs."""
    context = 2 * generation.context
    while context <= prompt_tokens:
        context *= 2
    return f"--context {context}"


def answer_of(
    spoken: Spoken,
    prompt: Sequence[int],
    text: str | None,
    fitting: int,
    wanted: int,
    sampling: Sampling | None = None,
) -> Answer:
    """The answer in what was generated.

    Args:
        spoken: What the program generated.
        prompt: Its token ids.
        text: Of the new tokens.
        fitting: New tokens that the context has room for.
        wanted: New tokens that were asked for.
        sampling: How they were chosen.
    """
    tokens = len(spoken.token_ms)
    ended: Stopped = "context_full" if fitting < wanted else "max_new_tokens"
    return Answer(
        prompt_tokens=len(prompt),
        cached_tokens=len(prompt) - spoken.taken,
        token_ids=spoken.token_ids,
        text=text,
        ttft_ms=spoken.first_token_ms,
        prefill_tokens_per_s=tokens_per_s(spoken.taken, spoken.first_token_ms),
        decode_tokens_per_s=tokens_per_s(tokens, sum(spoken.token_ms)) if tokens else None,
        stopped="stop_token" if spoken.stopped else ended,
        seed=sampling.seed if sampling and sampling.temperature else None,
    )


def summary(answer: Answer, generation: Generation) -> str:
    """One line for people."""
    decode = answer.decode_tokens_per_s
    parts = [
        f"first token after {duration(answer.ttft_ms)}",
        f"prefill {answer.prefill_tokens_per_s:.1f} tokens/s ({_prefilled(answer)})",
        *([] if decode is None else [f"decode {decode:.1f} tokens/s ({len(answer.token_ids):,})"]),
        _why(answer, generation),
        *([] if answer.seed is None else [f"--seed {answer.seed}"]),
    ]
    return ", ".join(parts)


def _prefilled(answer: Answer) -> str:
    computed = f"{answer.prompt_tokens - answer.cached_tokens:,}"
    return f"{computed} of {answer.prompt_tokens:,}" if answer.cached_tokens else computed


def _why(answer: Answer, generation: Generation) -> str:
    if answer.stopped == "stop_token":
        return f"ended by the stop token {answer.token_ids[-1]}"
    if answer.stopped == "max_new_tokens":
        return f"ended by --max-new-tokens {len(answer.token_ids)}"
    return (
        f"ended because the context of {generation.context:,} tokens is full "
        f"({more_context(generation)})"
    )


# Fewer are a table or a list; no period is longer than a paragraph.
_LEAST_REPEATED, _LEAST_PERIODS, _LONGEST_PERIOD = 96, 4, 64


class RepetitionError(Interrupted):
    """An answer was stopped because it only repeated itself.

    Attributes:
        period: Tokens of the part that was repeated.
    """

    def __init__(self, period: int) -> None:
        super().__init__(f"the answer repeated the same {count(period, 'token')}")
        self.period = period


def repeated_tokens(tokens: Sequence[int]) -> int:
    """The number of tokens that a text repeats at its end, again and again; 0 if it does not.

    A part counts from four repetitions on that have 96 tokens or more together.
    """
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_LEAST_REPEATED, _LEAST_PERIODS * period)
        end = tokens[-length:]
        if len(end) == length and end[period:] == end[:-period]:
            return period
    return 0


class Reply:
    """Takes new tokens, and shows their text; their ids where the model has no tokenizer.

    Args:
        tokenizer: The model's own.
        prompt: The ids before the first.
        stop_ids: Tokens that end a text; they are not shown.
        show: Called with each piece.

    Attributes:
        tokens: All ids so far.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
        show: Callable[[str], None],
    ) -> None:
        self.tokens: list[int] = []
        self._stream = TextStream(tokenizer.decode, prompt) if tokenizer else None
        self._stop_ids = frozenset(stop_ids)
        self._show = show
        self._pieces: list[str] = []

    @property
    def text(self) -> str | None:
        """What was shown; None without a tokenizer."""
        return "".join(self._pieces) if self._stream else None

    def take(self, token: int) -> None:
        """The next token."""
        self.tokens.append(token)
        if self._stream is None:
            self._show(f"{token} ")
        elif token not in self._stop_ids:
            self._tell(self._stream.add(token))

    def end(self) -> None:
        """Shows what is left: no token follows."""
        if self._stream:
            self._tell(self._stream.end())

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._show(text)
