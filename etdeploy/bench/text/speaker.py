"""A program on a device that is given prompts, and whose tokens are read as they are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

from etdeploy.bench.diagnosis import TEXT, run_error
from etdeploy.bench.text.answer import Spoken
from etdeploy.bench.timing.sweep import choose_threads
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.devices.base import Bundle, Device, DeviceState, RunOutcome, StreamingRun
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.generation import Generation
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import (
    GenerationResults,
    PromptRun,
    Sampling,
    generation_arguments,
    prompt_bytes,
    request_lines,
)
from etdeploy.runner.protocol import load_results_of

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
        made = load_results_of(GenerationResults, self.here / _RESULTS).generation.runs[0]
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
