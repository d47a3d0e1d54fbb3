"""The run record: the results of one measured run.

Every change of its keys raises SCHEMA_VERSION; `stored.py` refuses records of other versions.
docs/records.md is generated from the docstrings here.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from etdeploy.backends.values import Simulated
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.outputs import OutputCheck, RewritesRecord, UndelegatedTime
from etdeploy.bench.records.performance import (
    DeviceSample,
    Disturbance,
    Latency,
    Memory,
    Spread,
    Start,
    Sustained,
    ThreadsRecord,
    WorkloadKind,
)
from etdeploy.core.values import Value
from etdeploy.devices.base import DeviceFacts, DeviceState, Leftover
from etdeploy.plan.model import Provider
from etdeploy.program.model import Delegate, Operator
from etdeploy.program.quality import OutputLoss
from etdeploy.program.task import TaskResult
from etdeploy.runner.model import AppDetails

SCHEMA_VERSION: Literal[10] = 10
TRACE = "etdump"
"""The role, in `files`, of the trace of a run's only method."""


class DeviceRecord(Value):
    """The device's facts with its state before and after the run.

    Attributes:
        facts: What stays the same.
        before: Its state before the first pass.
        after: Its state after the last pass, but before the sustained one, which heats it; empty
            when the device had gone away.
        ended: Runners of earlier runs that were still running, and were ended before this one.
        during: Its states meanwhile; `clusters` and `temperatures_celsius` where it reports them.
    """

    facts: DeviceFacts
    before: DeviceState
    after: DeviceState
    ended: tuple[Leftover, ...] = ()
    during: tuple[DeviceSample, ...] = ()


class ProgramRecord(Value):
    """The program that ran.

    Attributes:
        sha256: Of the `.pte` file.
        size_bytes: Of the `.pte` file.
        method: The method that was run; of generated text, the one that gave the first point's
            tokens.
        operators: All that the program calls outside delegates, in every method.
        backends: All that its delegates name, in every method.
        operator_calls: Of the method that was run.
        delegates: Of the method that was run.
        source: The model source as a person reads it.
        backend: What the program was exported for; null for a finished program.
        quantization: Its scheme; null for a finished program.
        rewrites: Of its graph; null where none were tried.
        quantization_loss: For each output of the method, how far quantization moves it; empty for a
            program that is not quantized, a finished one, and generated text, which has
            `evaluation`. `fp16` is part of the lowering: `workload.outputs` compares it with the
            unquantized model.
    """

    sha256: str
    size_bytes: int
    method: str
    operators: tuple[str, ...]
    backends: tuple[str, ...]
    operator_calls: tuple[Operator, ...]
    delegates: tuple[Delegate, ...]
    source: str
    backend: str | None
    quantization: str | None
    rewrites: RewritesRecord | None = None
    quantization_loss: tuple[OutputLoss, ...] = ()


class RunnerRecord(Value):
    """The runner that ran it, or the app.

    Attributes:
        sha256: Of the executable, or of the app's archive.
        target: What it was built for.
        portable: Whether its own C library went to the device with it.
        executorch_version: Of its libraries.
        threads: Number of threads in its pool.
        threads_reason: Why that many; null where the recipe gives the number, or leaves it to
            ExecuTorch.
        size_bytes: Of the executable, or of the archive.
        provider: Where ExecuTorch came from: `wheel`, `source`, or `prebuilt` for its release for
            apps.
        revision: Of the checkout that it was built from.
        options: The cmake options of the build, by name.
        app: The app that ran it; null for a runner.
    """

    sha256: str
    target: str
    portable: bool
    executorch_version: str
    threads: int
    threads_reason: str | None = None
    size_bytes: int = 0
    provider: Provider = Provider.WHEEL
    revision: str | None = None
    options: dict[str, str] = {}
    app: AppDetails | None = None


class RecipeRecord(Value):
    """The recipe, resolved, and where it came from.

    Paths in it are relative to the folder of its file, which is not recorded.

    Attributes:
        name: Its own name, or that of its file.
        file: Name of its file.
        files: SHA-256 of every file that it was read from, by path.
        git_revision: Commit of the folder that the file is in; null outside a repository.
        git_dirty: Whether files below that folder differ from the commit.
        content: All values. Those of `model.arguments` and `runtime.cmake` are as written in the
            recipe.
    """

    name: str
    file: str
    files: dict[str, str]
    git_revision: str | None
    git_dirty: bool | None
    content: dict[str, Any]


class PassRecord(Value):
    """One start of the runner.

    Attributes:
        warmup: Iterations between the first inference and the timed ones; of text, generations of
            the first point before the timed ones.
        iterations: Timed ones; in the sustained pass, all of its work; of text, the samples of
            `workload.runs`.
        seconds: Wall time measured on the machine that runs etdeploy, connection included.
    """

    warmup: int
    iterations: int
    seconds: float


class SizeRecord(Value):
    """The results of one of the recipe's sizes.

    Attributes:
        name: As in the recipe.
        sizes: Dimensions with their sizes, as the recipe names them; the rest are the example's.
        shapes: Of the input tensors, by name.
        latency_ms: Of the timed inferences at this size.
        first_inference_ms: The first inference of a process that runs at this size alone.
        peak_rss_bytes: Peak resident memory in its memory pass; null when it was not measured.
        outputs: One entry for each output that was expected or received at this size.
        runs: The starts of the runner at this size.
        spread: Within and between them.
    """

    name: str
    sizes: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    latency_ms: Latency
    first_inference_ms: float
    peak_rss_bytes: int | None
    outputs: tuple[OutputCheck, ...]
    runs: tuple[Start, ...] = Field(min_length=1)
    spread: Spread


class TaskRecord(Value):
    """The result of a model with a task, for one input.

    Its times are of the model's processor, on the machine that runs etdeploy; `latency_ms` has
    neither.

    Attributes:
        task: As `model.task` names it.
        is_real: Whether the input is the user's, or a text; else it is random, and hides errors.
        preprocess_ms: To make tensors of the input.
        result: Of the device's outputs; `took_ms` is the time to read it from them.
        expected: Of the model's own outputs, run eagerly; null where there are none.
        agrees: Whether both say the same to a reader; null without `expected`.
    """

    task: str
    is_real: bool
    preprocess_ms: float
    result: TaskResult
    expected: TaskResult | None = None
    agrees: bool | None = None


class Inference(Value):
    """A workload that calls the method again and again with the same inputs.

    Where the recipe names sizes, everything but `sizes` is about the first one.

    Attributes:
        kind: `inference`.
        latency_ms: Of the timed inferences; setting the inputs is part of each.
        first_inference_ms: The first inference, before any warm-up; the median over the starts.
        outputs: One entry for each output that was expected or received.
        outputs_compared: False when there is nothing to compare with.
        sizes: One entry for each size that the recipe names, in its order.
        runs: The starts of the runner; `latency_ms` is over the samples of all.
        spread: Within and between the starts.
        threads: One entry for each number of threads of a sweep, in the recipe's order. Everything
            else is about the fastest of them.
        sustained: Back-to-back work for minutes; null where it was not measured.
        outside: The time outside of delegates; null without a profile pass.
        task: What the outputs mean; null where the recipe's model has no task.
    """

    kind: Literal[WorkloadKind.INFERENCE] = WorkloadKind.INFERENCE
    latency_ms: Latency
    first_inference_ms: float
    outputs: tuple[OutputCheck, ...]
    outputs_compared: bool
    sizes: tuple[SizeRecord, ...] = ()
    runs: tuple[Start, ...] = Field(min_length=1)
    spread: Spread
    threads: tuple[ThreadsRecord, ...] = ()
    sustained: Sustained | None = None
    outside: UndelegatedTime | None = None
    task: TaskRecord | None = None

    @property
    def metric(self) -> str:
        """What `timed` has."""
        return "latency_ms"

    @property
    def timed(self) -> Latency:
        """The times by which runs are compared; the starts' samples."""
        return self.latency_ms

    @property
    def sample(self) -> str:
        """What each of them is of."""
        return "inference"

    @property
    def first_ms(self) -> float:
        """What a process takes before any warm-up."""
        return self.first_inference_ms

    @property
    def all_outputs(self) -> tuple[OutputCheck, ...]:
        """The outputs of every size; with sizes, each name includes its size."""
        if not self.sizes:
            return self.outputs
        return tuple(
            check.model_copy(update={"name": f"{check.name} at {size.name}"})
            for size in self.sizes
            for check in size.outputs
        )


def trace_role(method: str) -> str:
    """The role, in `files`, of the trace of one of several methods."""
    return f"{TRACE}.{method}"


Workload = Annotated[Inference | TextGeneration, Field(discriminator="kind")]


def _relative(path: str) -> str:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise ValueError(f"{path!r} is not a path inside the record's folder")
    return path


FolderPath = Annotated[str, AfterValidator(_relative)]


class RunRecord(Value):
    """The results of one measured run.

    Attributes:
        schema_version: Of these keys.
        run_id: Names the run, and originally its folder.
        started_at: Date and time in UTC, ISO 8601.
        workload: What was run on the device; `kind` says which keys it has.
        load_ms: Loading the program and its method; the file was read shortly before. The median
            over the starts.
        verify_ms: ExecuTorch's thorough check of the program, before it is loaded. null from a
            runner that checked while it loaded: there `load_ms` includes both.
        peak_rss_bytes: Peak resident memory in the memory pass, at the recipe's first size; null
            when it was not measured.
        device: What it ran on.
        program: What ran.
        runner: What ran it.
        recipe: What defined the run.
        versions: Of the tools at export, of etdeploy, and of the runner's libraries.
        passes: By name: timing, memory, profile; those of further sizes end with the size's name,
            `timing-long`, further starts with their number, `timing.2`, and those of a sweep with
            their number of threads, `timing.threads-4.2`.
        files: The files in the record's folder, by their role; paths are relative to that folder.
        notes: Sentences that a reader of the numbers has to know.
        memory: The memory pass; null when it was not measured.
        disturbances: What made the whole run slower, or may have. A comparison takes such a run for
            what it is.
        interleaved_with: The `run_id` of the run with which this one took turns, start by start:
            their starts are pairs. null for a run of its own.
        simulated: What computed the program in place of the SoC that it was compiled for. Then the
            times and samples of the record are that simulator's, and say nothing about a device;
            the outputs count. null where the program ran on what it is for.
    """

    schema_version: Literal[10] = SCHEMA_VERSION
    run_id: str
    started_at: str
    workload: Workload
    load_ms: float
    verify_ms: float | None = None
    peak_rss_bytes: int | None
    device: DeviceRecord
    program: ProgramRecord
    runner: RunnerRecord
    recipe: RecipeRecord
    versions: dict[str, str]
    passes: dict[str, PassRecord]
    files: dict[str, FolderPath]
    notes: tuple[str, ...] = ()
    memory: Memory | None = None
    disturbances: tuple[Disturbance, ...] = ()
    interleaved_with: str | None = None
    simulated: Simulated | None = None

    @property
    def traces(self) -> dict[str, str]:
        """The roles of traces in `files`, by the method that was traced."""
        begin = trace_role("")
        own = {self.program.method: TRACE} if TRACE in self.files else {}
        several = {role.removeprefix(begin): role for role in self.files if role.startswith(begin)}
        return own | several

    @property
    def inference(self) -> Inference:
        """The workload of a run that measured inferences.

        Raises:
            TypeError: It measured something else.
        """
        if not isinstance(self.workload, Inference):
            raise TypeError(f"the workload is {self.workload.kind}")
        return self.workload
