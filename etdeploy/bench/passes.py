"""The passes of a measurement: separate processes on the device, each for one purpose.

Timing runs without a tracer, which would change the times. Memory runs on its own, since output
files and long lists of samples would count. The profile pass records an ETDump.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.bench.failures.diagnosis import run_error
from etdeploy.core.cancel import checkpoint
from etdeploy.deploy.bundle import list_name
from etdeploy.devices.base import Capabilities, RunFolder, RunOutcome
from etdeploy.program.folder import FORWARD, PROGRAM_FILE
from etdeploy.recipe.model import Recipe
from etdeploy.runner.protocol import RunnerResults, load_results

OUTPUTS = "outputs"
ETDUMP = "etdump.etdp"
RUNNER_LOG = "runner.stderr.txt"

# Memory is planned before the first inference; a second one shows what stays allocated.
_MEMORY_ITERATIONS = 2
# A simulator takes seconds for a second of a phone's time, and its times mean nothing.
_SIMULATED_ITERATIONS = 1
# A trace grows with every iteration, and the shares of operators settle quickly.
_PROFILE_ITERATIONS = 10
_PROFILE_WARMUP = 5
_ELSEWHERE = Capabilities()


@dataclass(frozen=True)
class Pass:
    """One start of the runner.

    Attributes:
        name: timing, memory or profile.
        size: The size of the recipe that it runs at; empty without sizes.
        further: Whether another size comes before it.
        method: The program's method that it runs.
        warmup, iterations: As the runner is told.
        outputs: Whether the outputs of the first inference are written.
        etdump: Whether a trace is recorded.
    """

    name: str
    warmup: int
    iterations: int
    outputs: bool = False
    etdump: bool = False
    size: str = ""
    further: bool = False
    method: str = FORWARD

    @property
    def key(self) -> str:
        """Identifies the pass: `timing`, and `timing-long` for a further size."""
        return f"{self.name}-{self.size}" if self.further else self.name

    @property
    def results(self) -> str:
        """The file with its results, in the run's folder."""
        return f"{self.key}.json"

    @property
    def outputs_folder(self) -> str:
        """The folder with its outputs, in the run's folder."""
        return f"{OUTPUTS}-{self.size}" if self.further else OUTPUTS


@dataclass(frozen=True)
class PassResult:
    """The results of a pass.

    Attributes:
        results: As the runner wrote them.
        seconds: Wall time measured on the machine that runs etdeploy, connection included.
        file: Its results, in the run's folder.
        outputs: The folder with its outputs, in the run's folder; None where it wrote none.
    """

    results: RunnerResults
    seconds: float
    file: str
    outputs: str | None = None


def passes(recipe: Recipe, method: str = FORWARD, *, simulated: bool = False) -> tuple[Pass, ...]:
    """The passes that a recipe requests, in the order in which they run.

    Every size has its own process, so that its first inference really is a first one. The profile
    is of the first size.

    Args:
        recipe: What is requested.
        method: Of the program, that every pass runs.
        simulated: Whether a simulator runs the program. Then the outputs are all that counts, and
            each size has one short pass, whatever is requested.
    """
    wanted = recipe.benchmark
    sizes = [(size, i > 0) for i, size in enumerate(wanted.sizes or ("",))]
    warmup, iterations = wanted.warmup, wanted.iterations
    if simulated:
        warmup, iterations = 0, _SIMULATED_ITERATIONS
    planned = [
        Pass("timing", warmup, iterations, outputs=True, size=size, further=further)
        for size, further in sizes
    ]
    if wanted.memory and not simulated:
        iterations = min(wanted.iterations, _MEMORY_ITERATIONS)
        planned += [Pass("memory", 0, iterations, size=s, further=f) for s, f in sizes]
    if wanted.profile and not simulated:
        warmup = min(wanted.warmup, _PROFILE_WARMUP)
        iterations = min(wanted.iterations, _PROFILE_ITERATIONS)
        planned.append(Pass("profile", warmup, iterations, etdump=True, size=sizes[0][0]))
    return tuple(replace(step, method=method) for step in planned)


def runner_arguments(step: Pass, recipe: Recipe) -> tuple[str, ...]:
    """The runner's command line for a pass; `{bundle}` is filled in by the device."""
    arguments = [
        "--program", f"{{bundle}}/{PROGRAM_FILE}",
        "--method", step.method,
        "--inputs", f"{{bundle}}/{list_name(step.size)}",
        "--warmup", str(step.warmup),
        "--iterations", str(step.iterations),
        "--threads", str(recipe.runtime.threads),
        "--results", step.results,
    ]  # fmt: skip
    if step.outputs:
        arguments += ["--outputs", step.outputs_folder]
    if step.etdump:
        arguments += ["--etdump", ETDUMP]
    return tuple(arguments)


def run_pass(
    folder: RunFolder,
    step: Pass,
    recipe: Recipe,
    device: str,
    here: Path,
    capabilities: Capabilities = _ELSEWHERE,
) -> PassResult:
    """Runs one pass and copies its results here.

    Args:
        folder: Of the run on the device.
        step: The pass.
        recipe: Gives threads and time limit.
        device: Its name, for messages.
        here: The run's folder on this machine; its `runner.stderr.txt` gets the runner's output.
        capabilities: Of the device, for remedies.

    Raises:
        RunError: The runner crashed, refused, took too long or left no usable results.
        DeviceError: The device went away.
        Interrupted: The run was stopped.
    """
    outcome = folder.run(runner_arguments(step, recipe), recipe.benchmark.timeout_s)
    log = here / RUNNER_LOG
    _append(log, step, outcome)
    if outcome.exit_code != 0:
        # A stop ends the runner too, and is not its fault.
        checkpoint()
        raise run_error(outcome, step.key, recipe, device, log, capabilities, step.iterations)
    folder.pull(step.results, here / step.results)
    if step.outputs:
        folder.pull(step.outputs_folder, here / step.outputs_folder)
    if step.etdump:
        folder.pull(ETDUMP, here / ETDUMP)
    return PassResult(
        load_results(here / step.results),
        outcome.seconds,
        step.results,
        step.outputs_folder if step.outputs else None,
    )


def _append(log: Path, step: Pass, outcome: RunOutcome) -> None:
    ended = "ended by the time limit" if outcome.timed_out else f"exit code {outcome.exit_code}"
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"== {step.key} pass: {ended} after {outcome.seconds:.1f} s\n")
        for text in (outcome.stdout, outcome.stderr):
            stream.write(text if text.endswith("\n") or not text else text + "\n")
