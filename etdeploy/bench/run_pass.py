"""Run one pass on the device and read its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.bench.bundle import list_name
from etdeploy.bench.conditions import (
    NO_OBSERVATION,
    Observation,
    frequency_limits,
    start_disturbances,
)
from etdeploy.bench.diagnosis import app_error, run_error
from etdeploy.bench.generation_workload import counted_runs
from etdeploy.bench.passes import TIMING, Pass
from etdeploy.bench.records.generation import MethodTrace
from etdeploy.bench.records.performance import Disturbance
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import DeviceError, RunError
from etdeploy.core.flatbuffer import CorruptError
from etdeploy.devices.base import Capabilities, RunFolder, RunOutcome, TimedState
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.recipe.model import Recipe
from etdeploy.runner.etdump import TraceSummary, read_summary
from etdeploy.runner.generation import (
    GenerationResults,
    TracedCalls,
    generation_arguments,
    trace_path,
)
from etdeploy.runner.protocol import RunnerResults, load_results, load_results_as

ETDUMP = "etdump.etdp"
RUNNER_LOG = "runner.stderr.txt"
# Makes an app warm up until the times are steady.
_UNTIL_STEADY = -1
_ELSEWHERE = Capabilities()


@dataclass(frozen=True)
class PassResult:
    """The results of a pass.

    Attributes:
        results: As the runner wrote them; of generated text, the first point's.
        seconds: Wall time by the clock of this machine, connection included; `started` is UTC.
        ended_early: Why it ended before its time and left a part of its results.
        states: The device's states during the pass.
        generated: All points of generated text, with the traced `methods`.
        executed: The traced inferences of a profile pass.
    """

    step: Pass
    results: RunnerResults
    seconds: float
    started: datetime
    ended_early: str | None = None
    states: tuple[TimedState, ...] = ()
    observation: Observation = NO_OBSERVATION
    disturbances: tuple[Disturbance, ...] = ()
    generated: GenerationResults | None = None
    methods: tuple[MethodTrace, ...] = ()
    executed: TraceSummary | None = None

    @property
    def file(self) -> str:
        """Its results, in the run's folder."""
        return self.step.results

    @property
    def outputs(self) -> str | None:
        """The folder with its outputs, in the run's folder; None where it wrote none."""
        return self.step.outputs_folder if self.step.outputs else None


# By the keys of the passes, in order.
Results = Mapping[str, PassResult]


def runner_arguments(step: Pass) -> tuple[str, ...]:
    """The runner's command line for a pass; `{bundle}` is filled in by the device."""
    if step.request:
        return generation_arguments(
            f"{{bundle}}/{PROGRAM_FILE}",
            f"{{bundle}}/{step.request}",
            step.results,
            threads=step.threads,
            watched=step.watched,
            etdump=ETDUMP if step.etdump else None,
        )
    arguments = [
        "--program", f"{{bundle}}/{PROGRAM_FILE}",
        "--method", step.method,
        "--inputs", f"{{bundle}}/{list_name(step.size)}",
        "--warmup", str(step.warmup),
        "--iterations", str(step.iterations),
        "--threads", str(step.threads),
        "--results", step.results,
    ]  # fmt: skip
    if step.outputs:
        arguments += ["--outputs", step.outputs_folder]
    if step.name == TIMING:
        arguments += ["--digest", "1"]
    if step.etdump:
        arguments += ["--etdump", ETDUMP]
    if step.watched:
        arguments += ["--watch-memory", "1"]
    if step.sustained_s:
        arguments += ["--sustained-ms", str(max(1, round(1000 * step.sustained_s)))]
    return tuple(arguments)


def app_options(step: Pass, files: Collection[str]) -> tuple[str, ...]:
    """The options of an app for a pass; `{bundle}` is filled in by the device."""
    options = [
        f"iterations={step.iterations}",
        f"warmup={_UNTIL_STEADY if step.warmup == 'auto' else step.warmup}",
        f"threads={step.threads}",
    ]
    if step.size:
        options.append(f"size={step.size}")
    if step.outputs:
        options.append("outputs=true")
    if PROGRAM_FILE in files:
        options.append(f"program={{bundle}}/{PROGRAM_FILE}")
    if step.request:
        options.append(f"request={{bundle}}/{step.request}")
    return tuple(options)


def run_pass(
    folder: RunFolder,
    step: Pass,
    recipe: Recipe,
    device: str,
    here: Path,
    capabilities: Capabilities = _ELSEWHERE,
    app_files: Collection[str] | None = None,
) -> PassResult:
    """Runs one pass and copies its results to the folder `here`."""
    started = datetime.now(timezone.utc)
    limit_s = (step.limit_s or recipe.benchmark.timeout_s) + step.sustained_s
    arguments = runner_arguments(step) if app_files is None else app_options(step, app_files)
    outcome = folder.run(arguments, limit_s)
    log = here / RUNNER_LOG
    _append(log, step, outcome)
    if outcome.exit_code != 0:
        # A stop ends the runner, too.
        checkpoint()
        # Fewer iterations do not shorten a generation.
        iterations = 1 if step.request else step.iterations
        make_error = run_error if app_files is None else app_error
        error = make_error(
            outcome, step.key, recipe, device, log, capabilities, iterations, limit_s
        )
        partial = _partial_results(folder, step, here)
        if partial is None:
            raise error
        why = error.message.splitlines()[0]
        return PassResult(
            step, partial, outcome.seconds, started, ended_early=why, states=outcome.states
        )
    folder.pull(step.results, here / step.results)
    if step.outputs:
        folder.pull(step.outputs_folder, here / step.outputs_folder)
    results, generated = _load(step, here / step.results)
    for trace in trace_files(generated) if step.etdump else ():
        folder.pull(trace, here / trace)
    return PassResult(
        step, results, outcome.seconds, started, states=outcome.states, generated=generated,
        methods=traced_methods(generated, here / ETDUMP) if generated else (),
        executed=_executed(here / ETDUMP) if step.etdump and not generated else None,
    )  # fmt: skip


def _executed(trace: Path) -> TraceSummary | None:
    """The traced calls; None if the trace cannot be read, which does not spoil the run."""
    try:
        return read_summary(trace.read_bytes())
    except CorruptError:
        return None


def trace_files(generated: GenerationResults | None) -> Sequence[str]:
    """The trace files of a pass: one, or one for each method that generated text."""
    if generated is None:
        return (ETDUMP,)
    return [trace_path(ETDUMP, method) for method in generated.generation.traced]


def _load(step: Pass, path: Path) -> tuple[RunnerResults, GenerationResults | None]:
    if not step.request:
        return load_results(path), None
    generated = load_results_as(GenerationResults, path)
    return as_inferences(generated, step.method, int(step.warmup)), generated


def _partial_results(folder: RunFolder, step: Pass, here: Path) -> RunnerResults | None:
    """The results of a runner that was killed during sustained work; None if there are none."""
    if not step.sustained_s:
        return None
    try:
        folder.pull(step.results, here / step.results)
        results = load_results(here / step.results)
    except (DeviceError, RunError):
        return None
    return results if results.sustained else None


def _append(log: Path, step: Pass, outcome: RunOutcome) -> None:
    ended = "ended by the time limit" if outcome.timed_out else f"exit code {outcome.exit_code}"
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"== {step.key} pass: {ended} after {outcome.seconds:.1f} s\n")
        for text in (outcome.stdout, outcome.stderr):
            stream.write(text if text.endswith("\n") or not text else text + "\n")


def traced_methods(results: GenerationResults, etdump: Path) -> tuple[MethodTrace, ...]:
    """Every method that a pass traced."""
    traced = results.generation.traced
    return tuple(_traced_method(method, calls, etdump) for method, calls in traced.items())


def _traced_method(method: str, calls: TracedCalls, etdump: Path) -> MethodTrace:
    executed = _read_trace(Path(trace_path(str(etdump), method)))
    return MethodTrace(
        method=method,
        calls=calls.calls,
        tokens=calls.tokens,
        position=calls.position,
        call_ms=executed.total_ms / max(1, executed.calls),
        outside_delegates=executed.outside,
    )


def _read_trace(path: Path) -> TraceSummary:
    try:
        return read_summary(path.read_bytes())
    except CorruptError as error:
        raise RunError(
            f"the runner left a damaged trace: {error}",
            place=path.name,
            remedy="Run it again, or without the trace: --set benchmark.profile=false",
        ) from error


def as_inferences(results: GenerationResults, method: str, warmup: int = 0) -> RunnerResults:
    """The first point's times as if they were inferences.

    The samples are the tokens after the first, or the times to first token if there are none. The
    first inference is the first generation's time to first token.
    """
    generation = results.generation
    counted = counted_runs(results, 0)
    tokens = [ms for run in counted for ms in run.token_ms]
    return RunnerResults(
        **{name: getattr(results, name) for name in type(results).model_fields if name != _OWN},
        method=method,
        warmup=warmup,
        load_method_ms=sum(generation.load_methods_ms.values()) + generation.load_draft_ms,
        first_inference_ms=generation.runs[0].first_token_ms,
        outputs=(),
        outputs_digest=None,
        samples_ms=tuple(tokens or [run.first_token_ms for run in counted]),
    )


_OWN = "generation"


def add_disturbances(results: Results, device: DeviceRecord) -> Results:
    """Add what disturbed each pass, which is known when all have ended."""
    states = [state for result in results.values() for state in result.observation.states]
    limits = frequency_limits((device.before, *states, device.after))
    return {
        key: replace(
            result, disturbances=start_disturbances(result.observation, result.results, limits)
        )
        for key, result in results.items()
    }
