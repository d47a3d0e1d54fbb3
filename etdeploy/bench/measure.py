"""One measured run: passes on the device, outputs compared, everything in a run record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from etdeploy.bench.assemble import Subject, assemble
from etdeploy.bench.conditions import Revision, judged, revision_of
from etdeploy.bench.generation_work import (
    MEMORY_REQUEST,
    PROFILE_REQUEST,
    TEXT_REQUEST,
    TIMING_REQUEST,
    GenerationWorkload,
)
from etdeploy.bench.passes import MEMORY, PROFILE, TEXT, TIMING, Pass, PassResult, run_pass
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.bench.records.stored import RECORD_FILE, StoredRun
from etdeploy.bench.results_folder import keep_files, results_folder
from etdeploy.bench.series import emulated_defaults, limit_s, probe_of
from etdeploy.bench.sizes import compare_sizes, compare_threads
from etdeploy.bench.sweep import (
    Plan,
    ThreadCounts,
    choose_threads,
    chosen_threads,
    compared_with_cores,
    fastest,
    plan_for_app,
    plan_passes,
    settled,
)
from etdeploy.bench.units import long_time
from etdeploy.bench.verdict import require_match
from etdeploy.bench.watch import DeviceWatch, PassObservation
from etdeploy.core.console import count
from etdeploy.core.errors import DeviceError, RunError
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import Bundle, Capabilities, Device, DeviceState, RunFolder
from etdeploy.plan.components import THREADPOOL
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Cooldown, Recipe
from etdeploy.runner.model import BuiltRunner

__all__ = ["Measurement", "PreparedMeasurement", "begin", "measure", "require_match"]


@dataclass(frozen=True)
class PreparedMeasurement:
    """What is measured, ready to run.

    Attributes:
        bundle: As `make_bundle` gave it; it was pushed to the device.
        loaded: The recipe.
        program_folder: Holds the program, its expected outputs and its provenance.
        program: The result of its inspection.
        runner: What is in the bundle.
        plan: Of the runner; kept beside the record.
        revision: Of the recipe's folder, where that is on another host; None to ask git.
    """

    bundle: Bundle
    loaded: LoadedRecipe
    program_folder: Path
    program: Program
    runner: BuiltRunner
    plan: RuntimePlan | None = None
    revision: Revision | None = None


@contextmanager
def begin(
    device: Device, prepared: PreparedMeasurement, output: Path, progress: Progress = silent
) -> Iterator[Measurement]:
    """Opens a measurement: a folder here, and one on the device.

    When the block fails, only the runner's log stays; after an interruption nothing does.
    """
    bundle, loaded = prepared.bundle, prepared.loaded
    if device.capabilities.emulated:
        loaded = emulated_defaults(loaded)
    subject = Subject.of(
        loaded,
        prepared.program_folder,
        prepared.program,
        prepared.runner,
        bundle.simulated,
    )
    if bundle.app:
        subject = replace(subject, app_files=tuple(file.path for file in bundle.files))
    started = datetime.now(timezone.utc)
    name = loaded.name
    with (
        results_folder(output.absolute(), started, name, device.name) as here,
        ExitStack() as opened,
    ):
        ended = device.end_leftovers()
        before = DeviceRecord(
            facts=device.facts(), before=device.state(), after=DeviceState(), ended=ended
        )
        folder = opened.enter_context(device.open_run(prepared.bundle, here.name))
        there = OnDevice(device, folder, opened.close, before)
        yield Measurement(subject, there, here, started, prepared.plan, progress, prepared.revision)


def measure(
    device: Device, prepared: PreparedMeasurement, output: Path, progress: Progress = silent
) -> StoredRun:
    """Runs every pass on the device and writes a folder with the record and all results.

    Outputs that differ are part of the record: see `require_match`.

    Args:
        device: Locked for this run.
        prepared: What is measured.
        output: The folder that gets a folder for this run.
        progress: Called for each pass.

    Raises:
        UsageError: The program does not have the recipe's method, or `output` cannot be written to.
        RunError: The runner failed; its log stays in `output`.
        DeviceError: The device went away.
        Interrupted: The run was stopped; nothing of it stays.
    """
    with begin(device, prepared, output, progress) as measurement:
        for number in range(1, measurement.starts + 1):
            measurement.start(number)
        return measurement.finish()


@dataclass(frozen=True)
class OnDevice:
    """A device during a measurement, with the folder of the run on it, and how to remove that."""

    device: Device
    folder: RunFolder
    close: Callable[[], None]
    before: DeviceRecord

    def closed(self, after: DeviceState | None = None) -> DeviceRecord:
        """Removes the folder and reads the device's last state, unless it is known."""
        self.close()
        return self.before.model_copy(update={"after": after or _state_of(self.device)})


class Measurement:
    """A measurement that goes on start by start; `begin` gives it.

    So two can take turns on one device, and what changes meanwhile changes both alike:

        with begin(device, ...) as a, begin(device, ...) as b:
            for number in range(1, a.starts + 1):
                a.start(number)
                b.start(number)
            return a.finish(b.run_id), b.finish(a.run_id)

    Attributes:
        starts: How many starts the recipe requests.
        run_id: Of the record.
    """

    def __init__(
        self,
        subject: Subject,
        there: OnDevice,
        here: Path,
        started: datetime,
        plan: RuntimePlan | None,
        progress: Progress,
        revision: Revision | None = None,
    ) -> None:
        self._revision = revision
        self._subject, self._there, self._here = subject, there, here
        self._started, self._plan, self._progress = started, plan, progress
        recipe, simulated = subject.loaded.recipe, subject.simulated is not None
        self._threads = choose_threads(
            recipe.runtime.threads, there.before.before, has_pool=_has_pool(plan)
        )
        passes = (
            plan_generation(recipe, subject.work, self._threads, simulated=simulated)
            if subject.work
            else plan_passes(recipe, subject.method.name, self._threads, simulated=simulated)
        )
        self._passes = passes if subject.app_files is None else plan_for_app(passes)
        self._results: dict[str, PassResult] = {}
        self._probes: dict[tuple[str, int], PassResult] = {}
        self._rested: DeviceState | None = None
        wanted = None if simulated else subject.loaded.recipe.benchmark.cooldown
        self._watch = DeviceWatch(there.device, there.before.before, wanted, progress)
        self.starts = len(self._passes.starts)
        self.run_id = here.name

    def start(self, number: int) -> None:
        """Runs the timing pass of every size once, or with every number of threads of a sweep."""
        for step in self._passes.starts[number - 1]:
            self._run(step)

    def finish(self, interleaved_with: str | None = None) -> StoredRun:
        """Runs the other passes, compares the outputs and writes the record."""
        subject, here = self._subject, self._here
        self._settle()
        for step in self._passes.rest:
            self._run(replace(step, threads=self._threads.numbers[0]))
        device = self._there.closed(after=self._rested)
        self._progress("comparing outputs")
        checks = compare_sizes(
            self._results,
            here,
            subject.program_folder,
            subject.provenance,
            subject.loaded.recipe.benchmark.tolerance,
        )
        results = judged(self._results, device)
        revision = self._revision or revision_of(subject.loaded.path)
        record = assemble(
            subject, device, results, self._threads, checks, revision,
            self._started, self.run_id,
            keep_files(here, self._results, subject.program_folder, self._plan),
            interleaved_with,
        )  # fmt: skip
        record.save(here / RECORD_FILE)
        return StoredRun(here, record)

    def _settle(self) -> None:
        """After a sweep, everything else is with the fastest number of threads, and about it."""
        recipe = self._subject.loaded.recipe
        best = fastest(self._results)
        if best is None:
            if recipe.runtime.thread_pool == "default" and _has_pool(self._plan):
                taken = self._results[TIMING].results.threads
                self._threads = compared_with_cores(self._threads, self._there.before.before, taken)
            return
        checks = compare_threads(
            self._results, self._here, self._subject.program_folder, self._subject.provenance,
            recipe.benchmark.tolerance,
        )  # fmt: skip
        wrong = [
            n for n, outputs in checks.items() if any(c.within_tolerance is False for c in outputs)
        ]
        self._threads = chosen_threads(self._results, best, wrong)
        self._results = settled(self._results, best, self._here)

    def _run(self, step: Pass) -> None:
        """Runs one pass: the place for what comes before, around and after every start."""
        step = self._limited(step)
        self._progress(self._doing(step))
        opening = self._opened(step)
        with telling_time(self._progress, f"{step.name} pass", step.sustained_s):
            result = self._run_pass(step)
        observed = opening.ended(result.states)
        # By a clock that nobody moves, so that starts stay in their order.
        started = self._started + timedelta(seconds=observed.began_s)
        self._results[step.key] = replace(result, observed=observed, started=started)

    def _run_pass(self, step: Pass) -> PassResult:
        return run_pass(
            self._there.folder,
            step,
            self._subject.loaded.recipe,
            self._there.device.name,
            self._here,
            self._there.device.capabilities,
            self._subject.app_files,
        )

    def _limited(self, step: Pass) -> Pass:
        """The pass with a limit by the speed of an emulated device, unless the user gave one."""
        subject, emulated = self._subject, self._there.device.capabilities.emulated
        given = subject.loaded.is_chosen("benchmark", "timeout_s")
        if not emulated or given or step.request or subject.simulated:
            return step
        key = step.size, step.threads
        if key not in self._probes:
            probe = probe_of(step)
            self._progress(self._doing(probe))
            self._probes[key] = self._run_pass(probe)
            (self._here / probe.results).unlink()
        least_s = subject.loaded.recipe.benchmark.timeout_s
        return replace(step, limit_s=limit_s(step, self._probes[key], least_s))

    def _opened(self, step: Pass) -> PassObservation:
        """Waits and looks at the device as the pass wants it."""
        if not step.sustained_s:
            return self._watch.open(timed=step.name == TIMING)
        # The work is there to heat the device: it says nothing about the passes before.
        self._rested = self._watch.look()
        cool = cool_start(
            self._subject.loaded.recipe.benchmark.cooldown,
            self._rested or DeviceState(),
            self._there.device.capabilities,
        )
        return self._watch.open(timed=True, wanted=cool)

    def _doing(self, step: Pass) -> str:
        at = f" at {step.size}" if step.size else ""
        at += f" with {count(step.threads, 'thread')}" if step.swept else ""
        if step.sustained_s:
            return f"{step.name} pass{at}: {long_time(step.sustained_s)} of inferences"
        several = step.name == TIMING and self.starts > 1
        start = f", start {step.start} of {self.starts}" if several else ""
        what = "generation" if step.request else "inference"
        return f"{step.name} pass{at}{start}: {count(step.iterations, what)}"


def _has_pool(plan: RuntimePlan | None) -> bool:
    return plan is None or THREADPOOL in [part.name for part in plan.components]


def _state_of(device: Device) -> DeviceState:
    """The device's state; empty when the device has gone, which the next pass would tell."""
    try:
        return device.state()
    except DeviceError:
        return DeviceState()


def cool_start(
    wanted: Cooldown | None, state: DeviceState, device: Capabilities
) -> Cooldown | None:
    """What to wait for before the pass; None for nothing.

    Where the recipe does not say it, a phone is to begin at 37 °C at most, as for
    react-native-executorch's benchmarks: the passes before may have warmed it. A machine with a fan
    is as cool as it gets after seconds, so it does not wait. Nor does the machine that etdeploy
    runs on: its battery is warm from charging.
    """
    if wanted is not None:
        return wanted
    is_phone = state.battery_celsius is not None and not device.shares_cores
    return Cooldown() if is_phone else None


_EVERY_S = 1.0


@contextmanager
def telling_time(progress: Progress, what: str, length_s: float) -> Iterator[None]:
    """Reports each second of the block how long it has lasted, from a thread of its own."""
    if not length_s:
        yield
        return
    over = threading.Event()
    began_s = time.monotonic()

    def tell() -> None:
        while not over.wait(_EVERY_S):
            passed_s = min(time.monotonic() - began_s, length_s)
            progress(f"{what}: {long_time(passed_s)} of {long_time(length_s)}", passed_s / length_s)

    thread = threading.Thread(target=tell, name="telling time", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def plan_generation(
    recipe: Recipe, work: GenerationWorkload, threads: ThreadCounts, *, simulated: bool = False
) -> Plan:
    """The passes: the whole grid in each start, then the texts that are known of the model, the
    first point once for the memory, and traces.
    """
    first = work.points[0]
    timing = Pass(
        TIMING,
        warmup=first.warmup,
        iterations=sum(point.warmup + point.repetitions for point in work.points),
        method=work.method,
        threads=threads.numbers[0],
        request=TIMING_REQUEST,
    )
    known = len(work.generation.expected)
    text = replace(timing, name=TEXT, warmup=0, iterations=known, request=TEXT_REQUEST)
    texts = (text,) if known else ()
    if simulated:
        return Plan(((timing,),), texts)
    runs = recipe.benchmark.runs
    starts = tuple((replace(timing, start=number),) for number in range(1, runs + 1))
    return Plan(starts, (*texts, *_rest(recipe, work, replace(timing, warmup=0))))


def _rest(recipe: Recipe, work: GenerationWorkload, once: Pass) -> Iterator[Pass]:
    if recipe.benchmark.memory:
        yield replace(once, name=MEMORY, iterations=1, watched=True, request=MEMORY_REQUEST)
    if recipe.benchmark.profile:
        number = len(work.traced)
        yield replace(once, name=PROFILE, iterations=number, etdump=True, request=PROFILE_REQUEST)


def measure_interleaved(
    device: Device,
    a: PreparedMeasurement,
    b: PreparedMeasurement,
    output: Path,
    progress: Progress = silent,
) -> tuple[StoredRun, StoredRun]:
    """Runs A B B A A B ...: so neither is always first, when the device is cooler.

    Each gets a complete record; their starts are pairs by their position. When one of the two
    fails, no record of the other stays.

    Args:
        device: Locked for both; both bundles were pushed to it.
        a: One of the two.
        b: The other.
        output: The folder that gets a folder for each.
        progress: Called for each pass.

    Raises:
        UsageError: A program does not have its recipe's method, or `output` cannot be written to.
        RunError: A runner failed; its log stays in `output`.
        DeviceError: The device went away.
        Interrupted: The run was stopped; nothing of it stays.
    """
    with (
        begin(device, a, output, _named("A", progress)) as of_a,
        begin(device, b, output, _named("B", progress)) as of_b,
    ):
        sides = (("A", of_a), ("B", of_b))
        for number in range(1, max(of_a.starts, of_b.starts) + 1):
            for letter, measurement in sides if number % 2 else sides[::-1]:
                with _failing_as(letter):
                    _start(measurement, number)
        with _failing_as("A"):
            run_a = of_a.finish(of_b.run_id)
        with _failing_as("B"):
            return run_a, of_b.finish(of_a.run_id)


def _start(measurement: Measurement, number: int) -> None:
    # A simulated run has one start, whatever is requested.
    if number <= measurement.starts:
        measurement.start(number)


@contextmanager
def _failing_as(letter: str) -> Iterator[None]:
    """Says which of the two failed: they may be one recipe with other values."""
    try:
        yield
    except RunError as error:
        error.message = f"{letter}: {error.message}"
        raise


def _named(letter: str, progress: Progress) -> Progress:
    def report(text: str, fraction: float | None = None) -> None:
        progress(f"{letter}: {text}", fraction)

    return report
