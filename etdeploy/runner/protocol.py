"""Input and output of a runner: its list of inputs and its results.json.

A runner that generates text has another input and other results (`runner/generation.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from etdeploy.core.errors import RunError
from etdeploy.core.values import Value
from etdeploy.program.folder import Stored
from etdeploy.program.model import PlainValue


class RunnerOutput(Value):
    """An output of the first inference; `kind` is ExecuTorch's name.

    A `Tensor` has dtype, shape and the path of its contiguous bytes, relative to the folder of
    outputs. `Int`, `Double` and `Bool` have a value; it is None for an infinite or undefined one.
    """

    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    path: str | None = None
    value: float | int | bool | None = None


class MemoryState(Value):
    """Memory at one moment, in bytes; None for what the system does not report.

    Attributes:
        rss_bytes: Resident.
        pss_bytes: Resident, with shared pages divided among those that share them.
        anonymous_bytes: Resident, and of no file.
    """

    rss_bytes: int | None
    pss_bytes: int | None
    anonymous_bytes: int | None


class RunnerMemory(Value):
    """What the runner read of its memory with --watch-memory.

    Attributes:
        before_load: When it had started.
        after_load: When the method was loaded, before the first inference.
        peak_pss_bytes: Highest that was read.
        peak_footprint_bytes: Apple's phys_footprint.
        program_resident_bytes: Of the program's mapped file, after the last inference.
        points: Seconds since its start, resident bytes, proportional resident bytes.
    """

    before_load: MemoryState
    after_load: MemoryState
    peak_pss_bytes: int | None
    peak_footprint_bytes: int | None
    program_resident_bytes: int | None
    points: tuple[tuple[float, int, int | None], ...]


class RunnerSustained(Value):
    """Back-to-back work with --sustained-ms.

    Attributes:
        began_s: When it began, in seconds since the runner started.
        stretches: The end of each stretch in seconds since it began, and the inferences in it.
    """

    began_s: float
    stretches: tuple[tuple[float, int], ...] = Field(min_length=1)

    @property
    def inferences(self) -> int:
        """Their number in all stretches."""
        return sum(inferences for _, inferences in self.stretches)


class Processors(Value):
    """What the processors did from the first warm-up iteration to the last timed one; in a
    sustained pass, to the end of its work.

    Those of the whole machine are about the processors that the runner may use only, and counted in
    hundredths of a second. None for what the system does not report.

    Attributes:
        count: The processors that the runner may use; 0 where none is reported.
        wall_s: How long it was.
        own_s: Processor time of all threads of the runner.
        waited_s: How long its first thread, which infers, was ready while others ran.
        busy_s: Processor time of all programs.
        stolen_s: Time in which a virtual machine's host ran something else.
        clock_step_s: How far the clock of date and time was moved.
    """

    count: int
    wall_s: float
    own_s: float
    waited_s: float | None = None
    busy_s: float | None = None
    stolen_s: float | None = None
    clock_step_s: float | None = None


class StartResults(Value):
    """What results.json of every workload has.

    Attributes:
        started_unix_s: When it started, by the device's clock.
        threads: The actual number in ExecuTorch's thread pool.
        verify_ms: Time of ExecuTorch's thorough check of the program, which comes before loading;
            None from a runner that checked while it loaded the program.
        load_program_ms: Time of loading, from a file that was just read.
        rss_after_load_bytes, peak_rss_bytes: Peak resident memory until then; 0 if the system
            does not report it.
        processors: What they did meanwhile; None from a runner that did not ask.
        memory: In a memory pass.
    """

    schema_version: Literal[1]
    executorch_version: str
    started_unix_s: int
    threads: int = Field(ge=1)
    verify_ms: float | None = None
    load_program_ms: float
    rss_after_load_bytes: int
    peak_rss_bytes: int
    memory: RunnerMemory | None = None
    processors: Processors | None = None


class RunnerResults(StartResults):
    """results.json of inferences.

    Attributes:
        method: That ran.
        warmup: Iterations between the first inference and the timed ones.
        steady: Whether the times had stopped falling when the warm-up ended; None where it was told
            how many iterations.
        load_method_ms: Time of loading, after the program.
        samples_ms: Time of each timed inference, including setting the inputs.
        outputs: Of the first inference, when a folder for them was given.
        outputs_digest: Of the bytes of their tensors, where it was asked for.
        sustained: In a sustained pass; until then, where the runner was ended on the way.
    """

    method: str
    warmup: int = Field(ge=0)
    steady: bool | None = None
    load_method_ms: float
    first_inference_ms: float
    outputs: tuple[RunnerOutput, ...]
    outputs_digest: str | None = None
    samples_ms: tuple[float, ...] = Field(min_length=1)
    sustained: RunnerSustained | None = None


S = TypeVar("S", bound=StartResults)


def inputs_list(inputs: Sequence[Stored]) -> str:
    """The text of the file that the runner's --inputs names: one line for each input.

    Paths are not changed; the runner reads them relative to the list.
    """
    return "".join(f"{_line(value)}\n" for value in inputs)


def _line(value: Stored) -> str:
    if isinstance(value, PlainValue):
        # A Double as Python writes it is read back as the same number; True stands for 1.
        number = int(value.value) if isinstance(value.value, bool) else value.value
        return value.kind if value.kind == "None" else f"{value.kind} {number}"
    return " ".join([value.dtype, str(len(value.shape)), *map(str, value.shape), value.path])


def load_results(path: Path) -> RunnerResults:
    """Reads results.json of inferences.

    Raises:
        RunError: It is missing, truncated, or from another kind of runner.
    """
    return load_results_as(RunnerResults, path)


def load_results_as(workload: type[S], path: Path) -> S:
    """Reads results.json of a workload; raises as `load_results` does."""
    try:
        return workload.load(path)
    except FileNotFoundError:
        raise RunError("the runner ended without results", place=str(path)) from None
    except (OSError, ValidationError) as error:
        problem: Any = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise RunError(
            f"the runner's results cannot be read: {problem}", place=str(path)
        ) from error
