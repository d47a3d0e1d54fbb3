"""Generate text with a program on a device, and read each token as soon as it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from etdeploy.backends.values import Simulated
from etdeploy.bench.generation_request import encoder_run
from etdeploy.bench.program_run import PROGRAM, ProgramRun, open_run_folder
from etdeploy.bench.records.generation import SpeculatedCalls, speculated
from etdeploy.bench.units import duration
from etdeploy.core import cancel
from etdeploy.core.console import count
from etdeploy.core.errors import Interrupted, RunError, UsageError
from etdeploy.core.values import Value
from etdeploy.devices.base import Bundle, Device
from etdeploy.program.generation import Draft, Generation
from etdeploy.program.tokenizer import TextStream, Tokenizer
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.sections.benchmark import BenchmarkGeneration, Speculation
from etdeploy.runner.generation import (
    CallCounts,
    GenerationResults,
    PromptRun,
    Sampling,
    generation_arguments,
    prompt_bytes,
    request_lines,
    tokens_per_s,
)
from etdeploy.runner.protocol import load_results_as

_REQUEST, _PROMPT, _RESULTS = "request.txt", "prompt.bin", "results.json"


@dataclass(frozen=True)
class TextGenerator(ProgramRun):
    """A program that a runner loads for each prompt.

    Attributes:
        generation: How the program is called.
        encoder: The files of the encoder's inputs, by their names; empty for a program without one.
        draft: What proposes tokens, if the recipe names one.
    """

    generation: Generation
    encoder: Mapping[str, Path] = field(default_factory=dict)
    draft: Draft | None = None

    def generate(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        on_token: Callable[[int], None],
        stop: cancel.Flag | None = None,
    ) -> GenerationOutput:
        """Generates once, in a new process, at most `new_tokens`, which must fit the context.

        `on_token` may be called in another thread; an exception in it ends the generation and is
        raised here. `stop` ends only this generation. Raises Interrupted when it was stopped and
        the runner has ended.
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
        results = load_results_as(GenerationResults, self.here / _RESULTS).generation
        run = results.runs[0]
        return GenerationOutput(
            prefilled=len(prompt),
            first_token_ms=run.first_token_ms,
            token_ms=run.token_ms,
            token_ids=run.token_ids,
            stopped=run.stopped,
            encode_ms=next(iter(results.encode_ms), None),
            speculation=self.speculated(run, len(run.token_ms)),
        )

    def furthest(self, tokens: int) -> int:
        """The furthest end of a call of a text: one with wrong proposals ends behind the text."""
        ahead = self.generation.verify_tokens if self.speculation != "none" else 0
        return min(tokens + ahead, self.generation.context)

    def _send(self, prompt: Sequence[int], new_tokens: int, sampling: Sampling) -> None:
        """Sends a request and its prompt."""
        point = PromptRun(name="prompt", new_tokens=new_tokens, path=_PROMPT)
        request = request_lines(
            self.generation.methods, sampling, self.generation.stop_ids, [point],
            rewind=self.generation.rewind, encoder=encoder_run(self.generation.encoder),
            static_cache=self.generation.static_cache, speculation=self.speculation,
            draft=self.draft, load_mode=self.generation.load_mode,
        )  # fmt: skip
        for name, path in self.encoder.items():
            self.folder.put(path, name)
        self.put(_REQUEST, request)
        self.put(_PROMPT, prompt_bytes(prompt))

    @property
    def speculation(self) -> Speculation:
        """What the recipe requests."""
        return (self.recipe.benchmark.generation or BenchmarkGeneration()).speculation

    def speculated(self, counts: CallCounts, tokens: int) -> SpeculatedCalls | None:
        """What speculation did in a text of so many tokens after the first; None without it."""
        if self.speculation == "none":
            return None
        return speculated([counts], tokens, has_draft=self.draft is not None)


class _Tokens:
    """Parses tokens from the runner's lines; a failure ends the runner."""

    def __init__(self, on_token: Callable[[int], None], stop: cancel.Flag) -> None:
        self.stop = stop
        self._on_token = on_token
        self._failure: Exception | None = None

    def take(self, line: str) -> None:
        """Takes the next line."""
        if self._failure is not None:
            return
        try:
            self._on_token(int(line))
        except ValueError:
            self._fail(RunError(f"the runner printed {line[:80]!r} instead of a token ID"))
        except Exception as error:  # raised again by the waiting thread
            self._fail(error)

    def raise_failure(self) -> None:
        """Raises the exception that a token caused."""
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self.stop.set()


@contextmanager
def open_generator(
    device: Device,
    bundle: Bundle,
    generation: Generation,
    recipe: Recipe,
    log: Path,
    encoder: Mapping[str, Path] | None = None,
) -> Iterator[TextGenerator]:
    """Opens a program that was pushed; the run's folder on the device is removed at the end.

    Raises UsageError if the device cannot stream a program's output. The device must be locked.
    """
    with open_run_folder(device, bundle, "text") as (folder, here):
        yield TextGenerator(
            device, folder, recipe, log, here, bundle.simulated, generation, encoder or {},
            bundle.draft,
        )  # fmt: skip


Stopped = Literal["stop_token", "max_new_tokens", "context_full", "interrupted"]


class GenerationOutput(Value):
    """The tokens after a prompt, with their times.

    `prefilled` counts the tokens of the prompt that were not in the cache and had to be computed;
    `first_token_ms` is since the prefill began; `encode_ms` is the time of the encoder before it.
    `stopped` is whether a stop token, the last of `token_ids`, ended the text, and `interrupted`
    whether the caller did, perhaps before the first token. `speculation` is None without it.
    """

    prefilled: int
    first_token_ms: float
    token_ms: tuple[float, ...]
    token_ids: tuple[int, ...]
    stopped: bool
    interrupted: bool = False
    encode_ms: float | None = None
    speculation: SpeculatedCalls | None = None


class Answer(Value):
    """The output of `etdeploy generate --json`; docs/language-models.md defines its keys."""

    prompt_tokens: int
    cached_tokens: int = 0
    token_ids: tuple[int, ...]
    text: str | None
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    stopped: Stopped
    seed: int | None = None
    encode_ms: float | None = None
    speculation: SpeculatedCalls | None = None


def remaining_context(generation: Generation, prompt_tokens: int) -> int:
    """Returns how many new tokens fit after a prompt; the last one is not fed back.

    Raises UsageError if none fits or the prompt is empty.
    """
    if not prompt_tokens:
        raise UsageError("the prompt is empty", remedy="Pass a text: --prompt 'Once upon'")
    fitting = generation.context - prompt_tokens + 1
    if fitting > 0:
        return fitting
    raise UsageError(
        f"the prompt has {count(prompt_tokens, 'token')} and does not fit the program's context "
        f"of {generation.context:,}",
        remedy="Shorten it; or, if the model supports a longer context: "
        f"{more_context(generation, prompt_tokens)}",
    )


def more_context(generation: Generation, prompt_tokens: int = 0) -> str:
    """The option that doubles the context until a prompt fits."""
    context = 2 * generation.context
    while context <= prompt_tokens:
        context *= 2
    return f"--context {context}"


def make_answer(
    output: GenerationOutput,
    prompt: Sequence[int],
    text: str | None,
    remaining: int,
    requested: int,
    sampling: Sampling | None = None,
) -> Answer:
    """Return the answer; `remaining` new tokens fit the context, and `requested` were requested."""
    tokens = len(output.token_ms)
    ended: Stopped = "context_full" if remaining < requested else "max_new_tokens"
    if output.stopped or output.interrupted:
        ended = "stop_token" if output.stopped else "interrupted"
    return Answer(
        prompt_tokens=len(prompt),
        cached_tokens=len(prompt) - output.prefilled,
        token_ids=output.token_ids,
        text=text,
        ttft_ms=output.first_token_ms,
        prefill_tokens_per_s=tokens_per_s(output.prefilled, output.first_token_ms),
        decode_tokens_per_s=tokens_per_s(tokens, sum(output.token_ms)) if tokens else None,
        stopped=ended,
        seed=sampling.seed if sampling and sampling.temperature else None,
        encode_ms=output.encode_ms,
        speculation=output.speculation,
    )


def summary(answer: Answer, generation: Generation, simulated: Simulated | None = None) -> str:
    """One line for people; without the times of a simulated program, which say nothing."""
    decode = answer.decode_tokens_per_s
    encoder = answer.encode_ms
    if simulated:
        by = f"simulated by {simulated.by}, which gives no times of a device"
        return f"{by}: {_prompt_tokens(answer)} and {len(answer.token_ids):,} tokens, " + (
            _explain_end(answer, generation)
        )
    parts = [
        *([] if encoder is None else [f"encoder {duration(encoder)}"]),
        f"first token after {duration(answer.ttft_ms)}",
        f"prefill {answer.prefill_tokens_per_s:.1f} tokens/s ({_prompt_tokens(answer)})",
        *([] if decode is None else [f"decode {decode:.1f} tokens/s ({len(answer.token_ids):,})"]),
        *([] if answer.speculation is None else [answer.speculation.text]),
        _explain_end(answer, generation),
        *([] if answer.seed is None else [f"--seed {answer.seed}"]),
    ]
    return ", ".join(parts)


def _prompt_tokens(answer: Answer) -> str:
    computed = f"{answer.prompt_tokens - answer.cached_tokens:,}"
    return f"{computed} of {answer.prompt_tokens:,}" if answer.cached_tokens else computed


def _explain_end(answer: Answer, generation: Generation) -> str:
    if answer.stopped == "stop_token":
        return f"ended by the stop token {answer.token_ids[-1]}"
    if answer.stopped == "interrupted":
        return "stopped"
    if answer.stopped == "max_new_tokens":
        return f"ended by --max-new-tokens {len(answer.token_ids)}"
    return (
        f"ended because the context of {generation.context:,} tokens is full "
        f"({more_context(generation)})"
    )


# Fewer are a table or a list; no period is longer than a paragraph.
_LEAST_REPEATED, _LEAST_PERIODS, _LONGEST_PERIOD = 96, 4, 64


class RepetitionError(Interrupted):
    """An answer was stopped because it only repeated the same `period` tokens."""

    def __init__(self, period: int) -> None:
        super().__init__(f"the answer repeated the same {count(period, 'token')}")
        self.period = period


def find_repetition(tokens: Sequence[int]) -> int:
    """Return how many tokens the end of a text repeats; 0 if it does not repeat.

    At least four repetitions, and together at least 96 tokens, count as such.
    """
    for period in range(1, _LONGEST_PERIOD + 1):
        length = max(_LEAST_REPEATED, _LEAST_PERIODS * period)
        end = tokens[-length:]
        if len(end) == length and end[period:] == end[:-period]:
            return period
    return 0


class StreamedText:
    """Decodes tokens one by one and passes each piece of text, but no stop token, to `show`.

    Without a tokenizer, it shows the ids. `tokens` are all ids so far.
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
        """The text so far; None without a tokenizer."""
        return "".join(self._pieces) if self._stream else None

    def take(self, token: int) -> None:
        """Takes the next token."""
        self.tokens.append(token)
        if self._stream is None:
            self._show(f"{token} ")
        elif token not in self._stop_ids:
            self._show_text(self._stream.add(token))

    def end(self) -> None:
        """Shows the rest when no token follows."""
        if self._stream:
            self._show_text(self._stream.end())

    def _show_text(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._show(text)
