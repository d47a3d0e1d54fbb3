"""The passes of a measurement: separate processes on the device, each for one purpose.

Timing runs without a tracer, which would change the times, and is started several times, since
times differ more from process to process than within one. Memory runs on its own, since output
files and long lists of samples would count. The text pass of a program that generates text gives
what is compared with the model's. The profile pass records an ETDump. The sustained pass comes
last, since it heats the device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from etdeploy.bench.diagnosis import run_error
from etdeploy.bench.generation_work import GenerationWorkload, WorkPoint, point_name, text_of
from etdeploy.bench.records.generation import GenerationPoint, MethodTrace
from etdeploy.bench.records.performance import Disturbance
from etdeploy.bench.statistics import percentile, summarize
from etdeploy.bench.watch import UNOBSERVED, Observed
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import DeviceError, RunError
from etdeploy.core.flatbuffer import CorruptError
from etdeploy.deploy.bundle import list_name
from etdeploy.devices.base import Capabilities, RunFolder, RunOutcome, TimedState
from etdeploy.program.folder import FORWARD, PROGRAM_FILE
from etdeploy.recipe.model import Recipe
from etdeploy.runner.etdump import Executed, read_executed
from etdeploy.runner.generation import (
    Generated,
    GenerationResults,
    TracedCalls,
    generation_arguments,
    tokens_per_s,
    trace_path,
)
from etdeploy.runner.protocol import RunnerResults, load_results, load_results_as

TIMING = "timing"
MEMORY = "memory"
TEXT = "text"
PROFILE = "profile"
PROBE = "probe"
SUSTAINED = "sustained"
OUTPUTS = "outputs"
ETDUMP = "etdump.etdp"
RUNNER_LOG = "runner.stderr.txt"

# How an app is told to warm up until times have stopped falling.
_UNTIL_STEADY = -1
_ELSEWHERE = Capabilities()


@dataclass(frozen=True)
class Pass:
    """One start of the runner.

    Attributes:
        name: timing, memory, text, profile or sustained; probe on an emulated device.
        size: The size of the recipe that it runs at; empty without sizes.
        further: Whether another size comes before it.
        method: The program's method that it runs.
        warmup, iterations: As the runner is told.
        outputs: Whether the outputs of the first inference are written.
        etdump: Whether a trace is recorded.
        watched: Whether the runner watches its memory.
        sustained_s: How long it works back to back after the iterations, in seconds.
        start: Counts the starts of the same pass, from 1.
        threads: In ExecuTorch's pool, as the runner is told; 0 for ExecuTorch's choice.
        swept: Whether it is one of several numbers of threads.
        request: The file, in the bundle, that says what is generated; empty for inferences.
            `warmup` counts the first point's generations then, `iterations` those of all points.
        limit_s: Its time limit, without the sustained work; 0 for the recipe's.
    """

    name: str
    warmup: int | Literal["auto"]
    iterations: int
    outputs: bool = False
    etdump: bool = False
    watched: bool = False
    sustained_s: float = 0
    size: str = ""
    further: bool = False
    method: str = FORWARD
    start: int = 1
    threads: int = 0
    swept: bool = False
    request: str = ""
    limit_s: float = 0

    @property
    def key(self) -> str:
        """Identifies the pass: `timing`, `timing-long` for a further size.

        Further starts are `timing.2` and so on, those with other numbers of threads
        `timing.threads-4.2`: a size's name has no dot.
        """
        return self.name + self._suffix + (f".{self.start}" if self.start > 1 else "")

    @property
    def results(self) -> str:
        """The file with its results, in the run's folder."""
        return f"{self.key}.json"

    @property
    def outputs_folder(self) -> str:
        """The folder with its outputs, in the run's folder."""
        return OUTPUTS + self._suffix

    @property
    def _suffix(self) -> str:
        size = f"-{self.size}" if self.further else ""
        return f"{size}.threads-{self.threads}" if self.swept else size


@dataclass(frozen=True)
class PassResult:
    """The results of a pass.

    Attributes:
        step: The pass.
        results: As the runner wrote them; of text, the first point's.
        seconds: Wall time measured on the machine that runs etdeploy, connection included.
        started: When it began, in UTC by the clock of that machine.
        ended_early: Why it ended before its time and left a part of its results.
        states: What was read of the device's state meanwhile.
        observed: Of the device around it.
        disturbances: What made it slower, or may have.
        generated: All points, where text was generated.
        methods: Those of them that were traced.
        executed: The inferences that were traced, of a profile pass.
    """

    step: Pass
    results: RunnerResults
    seconds: float
    started: datetime
    ended_early: str | None = None
    states: tuple[TimedState, ...] = ()
    observed: Observed = UNOBSERVED
    disturbances: tuple[Disturbance, ...] = ()
    generated: GenerationResults | None = None
    methods: tuple[MethodTrace, ...] = ()
    executed: Executed | None = None

    @property
    def file(self) -> str:
        """Its results, in the run's folder."""
        return self.step.results

    @property
    def outputs(self) -> str | None:
        """The folder with its outputs, in the run's folder; None where it wrote none."""
        return self.step.outputs_folder if self.step.outputs else None


# By the keys of the passes, in the order in which they ran.
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
    """Runs one pass and copies its results here."""
    started = datetime.now(timezone.utc)
    limit_s = (step.limit_s or recipe.benchmark.timeout_s) + step.sustained_s
    arguments = runner_arguments(step) if app_files is None else app_options(step, app_files)
    outcome = folder.run(arguments, limit_s)
    log = here / RUNNER_LOG
    _append(log, step, outcome)
    if outcome.exit_code != 0:
        # A stop ends the runner too, and is not its fault.
        checkpoint()
        # Fewer iterations do not shorten a generation.
        iterations = 1 if step.request else step.iterations
        told = run_error if app_files is None else app_error
        error = told(outcome, step.key, recipe, device, log, capabilities, iterations, limit_s)
        until_then = _work_until_then(folder, step, here)
        if until_then is None:
            raise error
        why = error.message.splitlines()[0]
        return PassResult(
            step, until_then, outcome.seconds, started, ended_early=why, states=outcome.states
        )
    folder.pull(step.results, here / step.results)
    if step.outputs:
        folder.pull(step.outputs_folder, here / step.outputs_folder)
    results, generated = _load(step, here / step.results)
    for trace in traces_of(generated) if step.etdump else ():
        folder.pull(trace, here / trace)
    return PassResult(
        step, results, outcome.seconds, started, states=outcome.states, generated=generated,
        methods=traced_methods(generated, here / ETDUMP) if generated else (),
        executed=_executed(here / ETDUMP) if step.etdump and not generated else None,
    )  # fmt: skip


def _executed(trace: Path) -> Executed | None:
    """What was traced; None for a trace that cannot be read, whose run is as good as ever."""
    try:
        return read_executed(trace.read_bytes())
    except CorruptError:
        return None


def traces_of(generated: GenerationResults | None) -> Sequence[str]:
    """The traces that a pass leaves: one, or one for each method that generated text."""
    if generated is None:
        return (ETDUMP,)
    return [trace_path(ETDUMP, method) for method in generated.generation.traced]


def _load(step: Pass, path: Path) -> tuple[RunnerResults, GenerationResults | None]:
    if not step.request:
        return load_results(path), None
    generated = load_results_as(GenerationResults, path)
    return as_inferences(generated, step.method, int(step.warmup)), generated


def _work_until_then(folder: RunFolder, step: Pass, here: Path) -> RunnerResults | None:
    """What a runner that was ended in its sustained work left; None where there is nothing."""
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


# A release for apps cannot be built again, and neither brings its C library.
_OF_RUNNERS = re.compile(
    r"(?:Build (?:it|the runner) again: etdeploy clean runners(?:; or )?)"
    r"|(?:The runner does not match etdeploy\. )"
)
_SOURCE = "Build ExecuTorch for the app: --set app.runtime=source"
_ON_HOST = "--device host"
_WITHOUT = "without --as app and --app"
_RUNNER = "See whether the app is the cause: leave out --as app"


def app_error(
    outcome: RunOutcome,
    pass_name: str,
    recipe: Recipe,
    device: str,
    log: Path,
    capabilities: Capabilities,
    iterations: int | None = None,
    limit_s: float | None = None,
) -> RunError:
    """The same as `run_error`, for an app.

    A device that starts no processes is an iPhone, whose apps have ExecuTorch's Swift package.
    """
    has_runner = "process" in capabilities.launches
    error = run_error(outcome, pass_name, recipe, device, log, capabilities, iterations, limit_s)
    lines = [_OF_RUNNERS.sub("", line) for line in (error.remedy or "").splitlines()]
    kept = [_elsewhere(line[0].upper() + line[1:]) for line in lines if line.strip()]
    rebuilt = lines != (error.remedy or "").splitlines()
    if rebuilt and has_runner and recipe.app.runtime != "source":
        kept.append(_SOURCE)
    if has_runner and not outcome.timed_out:
        kept.append(_RUNNER)
    return RunError(
        error.message.replace("the runner", "the app"),
        place=error.place,
        remedy="\n".join(kept) or None,
        log=error.log,
    )


def _elsewhere(line: str) -> str:
    """This machine runs no apps."""
    return f"{line}, {_WITHOUT}" if line.endswith(_ON_HOST) else line


def traced_methods(results: GenerationResults, etdump: Path) -> tuple[MethodTrace, ...]:
    """Every method that a pass traced."""
    traced = results.generation.traced
    return tuple(_of(method, calls, etdump) for method, calls in traced.items())


def _of(method: str, calls: TracedCalls, etdump: Path) -> MethodTrace:
    executed = _executed_generation(Path(trace_path(str(etdump), method)))
    return MethodTrace(
        method=method,
        calls=calls.calls,
        tokens=calls.tokens,
        position=calls.position,
        call_ms=executed.total_ms / max(1, executed.calls),
        outside_delegates=executed.outside,
    )


def _executed_generation(path: Path) -> Executed:
    """The calls of a trace."""
    try:
        return read_executed(path.read_bytes())
    except CorruptError as error:
        raise RunError(
            f"the runner left a damaged trace: {error}",
            place=path.name,
            remedy="Try it again, or leave the trace out: --set benchmark.profile=false",
        ) from error


def as_inferences(results: GenerationResults, method: str, warmup: int = 0) -> RunnerResults:
    """The first point's times in the form of inferences'.

    The samples are the tokens after the first; where there is none, the times to first token. The
    first inference is the first generation's time to first token.
    """
    made = results.generation
    counted = runs_of(results, 0)
    tokens = [ms for run in counted for ms in run.token_ms]
    return RunnerResults(
        **{name: getattr(results, name) for name in type(results).model_fields if name != _OWN},
        method=method,
        warmup=warmup,
        load_method_ms=sum(made.load_methods_ms.values()),
        first_inference_ms=made.runs[0].first_token_ms,
        outputs=(),
        outputs_digest=None,
        samples_ms=tuple(tokens or [run.first_token_ms for run in counted]),
    )


_OWN = "generation"


def runs_of(results: GenerationResults, index: int) -> Sequence[Generated]:
    """The generations of a point that count."""
    return [run for run in results.generation.runs if run.point == point_name(index)]


def points_of(
    work: GenerationWorkload, starts: Sequence[GenerationResults], program_folder: Path
) -> tuple[GenerationPoint, ...]:
    """Every point of a measurement."""
    return tuple(
        _point(point, [run for start in starts for run in runs_of(start, i)], work, program_folder)
        for i, point in enumerate(work.points)
    )


def _point(
    point: WorkPoint, runs: Sequence[Generated], work: GenerationWorkload, program_folder: Path
) -> GenerationPoint:
    first, tokens_ms = runs[0], [ms for run in runs for ms in run.token_ms]
    first_token = summarize([run.first_token_ms for run in runs])
    return GenerationPoint(
        prompt_tokens=len(point.prompt),
        new_tokens=point.new_tokens,
        depth=point.depth,
        ttft_ms=first_token.median,
        prefill_tokens_per_s=tokens_per_s(len(point.prompt), first_token.median),
        decode_tokens_per_s=_decode_rate(runs),
        first_token_ms=first_token,
        token_ms=summarize(tokens_ms) if tokens_ms else None,
        token_ids=first.token_ids,
        text=text_of(first.token_ids, work.generation, program_folder),
        stopped=first.stopped,
        generations=len(runs),
        distinct=len({run.token_ids for run in runs}),
    )


def _decode_rate(runs: Sequence[Generated]) -> float | None:
    """The median over the generations that have more than a first token."""
    rates = [tokens_per_s(len(run.token_ms), sum(run.token_ms)) for run in runs if run.token_ms]
    return percentile(rates, 50) if rates else None
