"""One measured run: passes on the device, outputs compared, everything in a run record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from statistics import median

from etdeploy.bench.assemble import Revision, Subject, assemble
from etdeploy.bench.conditions import DeviceWatch, PendingObservation
from etdeploy.bench.outputs import compare_sizes, compare_threads, read_task
from etdeploy.bench.passes import (
    TIMING,
    Pass,
    emulated_defaults,
    limit_s,
    plan_for_app,
    plan_generation,
    plan_passes,
    probe_of,
)
from etdeploy.bench.records.record import DeviceRecord, Inference
from etdeploy.bench.records.stored import RECORD_FILE, StoredRun
from etdeploy.bench.results_folder import keep_files, results_folder
from etdeploy.bench.run_pass import PassResult, add_disturbances, run_pass
from etdeploy.bench.starts import fastest, fastest_threads, promote_fastest
from etdeploy.bench.threads import choose_threads, note_core_count
from etdeploy.bench.units import long_time
from etdeploy.core.console import count
from etdeploy.core.errors import DeviceError, RunError
from etdeploy.core.processes.process import run_git
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import Bundle, Capabilities, Device, DeviceState, RunFolder
from etdeploy.plan.components import THREADPOOL
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.sections.benchmark import Cooldown
from etdeploy.runner.model import BuiltRunner


@dataclass(frozen=True)
class PreparedMeasurement:
    """A recipe whose bundle was pushed to the device.

    `revision` is that of the recipe's folder if that is on another host; None to ask git.
    """

    bundle: Bundle
    loaded: LoadedRecipe
    program_folder: Path
    program: Program
    runner: BuiltRunner
    plan: RuntimePlan | None = None
    revision: Revision | None = None


@contextmanager
def open_measurement(
    device: Device, prepared: PreparedMeasurement, output: Path, progress: Progress = silent
) -> Iterator[Measurement]:
    """Opens a measurement with a results folder here and a run folder on the device.

    If the block fails, only the runner's log stays; after an interruption, nothing does.
    """
    bundle, loaded = prepared.bundle, prepared.loaded
    if device.capabilities.emulated:
        loaded = emulated_defaults(loaded)
    subject = Subject.of(
        loaded, prepared.program_folder, prepared.program, prepared.runner, bundle.simulated,
        bundle.draft,
    )  # fmt: skip
    if bundle.app:
        subject = replace(subject, app_files=tuple(file.path for file in bundle.files))
    started = datetime.now(timezone.utc)
    name = loaded.name
    with (
        results_folder(output.absolute(), started, name, device.name) as here,
        ExitStack() as stack,
    ):
        ended = device.end_leftovers()
        before = DeviceRecord(
            facts=device.facts(), before=device.state(), after=DeviceState(), ended=ended
        )
        folder = stack.enter_context(device.open_run(prepared.bundle, here.name))
        there = MeasuredDevice(device, folder, stack.close, before)
        yield Measurement(subject, there, here, started, prepared.plan, progress, prepared.revision)


def measure(
    device: Device, prepared: PreparedMeasurement, output: Path, progress: Progress = silent
) -> StoredRun:
    """Runs every pass on the device, which is locked, and writes a new folder in `output`.

    The folder has the record and all results, or only the runner's log if the runner fails.
    Outputs that differ are part of the record: see `require_match`.
    """
    with open_measurement(device, prepared, output, progress) as measurement:
        for number in range(1, measurement.starts + 1):
            measurement.start(number)
        return measurement.finish()


@dataclass(frozen=True)
class MeasuredDevice:
    """A device during a measurement, with the run's folder on it."""

    device: Device
    folder: RunFolder
    remove_folder: Callable[[], None]
    before: DeviceRecord

    def close(self, after: DeviceState | None = None) -> DeviceRecord:
        """Removes the folder, and reads the device's last state if it is not known."""
        self.remove_folder()
        return self.before.model_copy(update={"after": after or _state_of(self.device)})


class Measurement:
    """A measurement that runs start by start, made by `open_measurement`.

    Two of them can be interleaved on a device, so that slow changes affect both alike.
    """

    def __init__(
        self,
        subject: Subject,
        there: MeasuredDevice,
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
        cooldown = None if simulated else recipe.benchmark.cooldown
        self._watch = DeviceWatch(there.device, there.before.before, cooldown, progress)
        self.starts = len(self._passes.starts)
        self.run_id = here.name

    def start(self, number: int) -> None:
        """Runs one start: the timing pass at every size, or with every number of threads."""
        for step in self._passes.starts[number - 1]:
            self._run(step)

    @property
    def medians_ms(self) -> list[float]:
        """The median of each start so far, at the first size."""
        return [
            median(result.results.samples_ms)
            for result in self._results.values()
            if result.step.name == TIMING and not result.step.further
        ]

    def finish(self, interleaved_with: str | None = None) -> StoredRun:
        """Runs the other passes, compares the outputs and writes the record."""
        subject, here = self._subject, self._here
        self._choose_threads()
        for step in self._passes.rest:
            self._run(replace(step, threads=self._threads.numbers[0]))
        device = self._there.close(after=self._rested)
        self._progress("comparing outputs")
        checks = compare_sizes(
            self._results,
            here,
            subject.program_folder,
            subject.provenance,
            subject.loaded.recipe.benchmark.tolerance,
        )
        results = add_disturbances(self._results, device)
        revision = self._revision or revision_of(subject.loaded.path)
        record = assemble(
            subject, device, results, self._threads, checks, revision,
            self._started, self.run_id,
            keep_files(here, self._results, subject.program_folder, self._plan),
            interleaved_with,
        )  # fmt: skip
        if isinstance(record.workload, Inference) and subject.provenance.task:
            self._progress("reading the result from the outputs")
            task = read_task(self._results, here, subject.program_folder, subject.provenance)
            workload = record.workload.model_copy(update={"task": task})
            file = {"result": task.result.file} if task and task.result.file else {}
            files = {**record.files, **file}
            record = record.model_copy(update={"workload": workload, "files": files})
        record.save(here / RECORD_FILE)
        return StoredRun(here, record)

    def _choose_threads(self) -> None:
        """After a sweep, uses the fastest number of threads for all other passes."""
        recipe = self._subject.loaded.recipe
        best = fastest(self._results)
        if best is None:
            if recipe.runtime.thread_pool == "default" and _has_pool(self._plan):
                used = self._results[TIMING].results.threads
                self._threads = note_core_count(self._threads, self._there.before.before, used)
            return
        checks = compare_threads(
            self._results, self._here, self._subject.program_folder, self._subject.provenance,
            recipe.benchmark.tolerance,
        )  # fmt: skip
        wrong = [
            n for n, outputs in checks.items() if any(c.within_tolerance is False for c in outputs)
        ]
        self._threads = fastest_threads(self._results, best, wrong)
        self._results = promote_fastest(self._results, best, self._here)

    def _run(self, step: Pass) -> None:
        step = self._with_limit(step)
        self._progress(self._describe(step))
        pending = self._observe(step)
        with show_elapsed(self._progress, f"{step.name} pass", step.sustained_s):
            result = self._run_pass(step)
        observation = pending.end(result.states)
        # The monotonic clock keeps the starts in order.
        started = self._started + timedelta(seconds=observation.began_s)
        self._results[step.key] = replace(result, observation=observation, started=started)

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

    def _with_limit(self, step: Pass) -> Pass:
        """The pass with a time limit for an emulated device's speed, unless the user chose one."""
        subject, emulated = self._subject, self._there.device.capabilities.emulated
        chosen = subject.loaded.is_chosen("benchmark", "timeout_s")
        if not emulated or chosen or step.request or subject.simulated:
            return step
        key = step.size, step.threads
        if key not in self._probes:
            probe = probe_of(step)
            self._progress(self._describe(probe))
            self._probes[key] = self._run_pass(probe)
            (self._here / probe.results).unlink()
        least_s = subject.loaded.recipe.benchmark.timeout_s
        return replace(step, limit_s=limit_s(step, self._probes[key], least_s))

    def _observe(self, step: Pass) -> PendingObservation:
        if not step.sustained_s:
            return self._watch.begin(timed=step.name == TIMING)
        # This pass heats the device: the state for the record is that before it.
        self._rested = self._watch.read_state()
        cool = sustained_cooldown(
            self._subject.loaded.recipe.benchmark.cooldown,
            self._rested or DeviceState(),
            self._there.device.capabilities,
        )
        return self._watch.begin(timed=True, cooldown=cool)

    def _describe(self, step: Pass) -> str:
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
    """The device's state; empty if the device is gone: then the next pass fails."""
    try:
        return device.state()
    except DeviceError:
        return DeviceState()


def sustained_cooldown(
    cooldown: Cooldown | None, state: DeviceState, device: Capabilities
) -> Cooldown | None:
    """The cooldown before the sustained pass: the recipe's, or 37 °C for a phone.

    react-native-executorch's benchmarks use 37 °C, too: earlier passes may have warmed the phone.
    A machine with a fan cools within seconds, and this machine's battery is warm from charging, so
    these do not wait.
    """
    if cooldown is not None:
        return cooldown
    is_phone = state.battery_celsius is not None and not device.shares_cores
    return Cooldown() if is_phone else None


_EVERY_S = 1.0


@contextmanager
def show_elapsed(progress: Progress, what: str, length_s: float) -> Iterator[None]:
    """Reports every second how long the block has run, from a thread."""
    if not length_s:
        yield
        return
    over = threading.Event()
    began_s = time.monotonic()

    def report() -> None:
        while not over.wait(_EVERY_S):
            passed_s = min(time.monotonic() - began_s, length_s)
            progress(f"{what}: {long_time(passed_s)} of {long_time(length_s)}", passed_s / length_s)

    thread = threading.Thread(target=report, name="elapsed time", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measure_interleaved(
    device: Device,
    a: PreparedMeasurement,
    b: PreparedMeasurement,
    output: Path,
    progress: Progress = silent,
) -> tuple[StoredRun, StoredRun]:
    """Runs starts in the order A B B A A B ..., so that neither is always first on a cool device.

    Each gets a complete record, and starts with the same number are pairs. If one fails, neither
    has a record. The device is locked, and both bundles were pushed to it.
    """
    with (
        open_measurement(device, a, output, _named("A", progress)) as of_a,
        open_measurement(device, b, output, _named("B", progress)) as of_b,
    ):
        sides = (("A", of_a), ("B", of_b))
        for number in range(1, max(of_a.starts, of_b.starts) + 1):
            for letter, measurement in sides if number % 2 else sides[::-1]:
                with _failing_as(letter):
                    # A simulated run has one start, whatever the recipe requests.
                    if number <= measurement.starts:
                        measurement.start(number)
        with _failing_as("A"):
            run_a = of_a.finish(of_b.run_id)
        with _failing_as("B"):
            return run_a, of_b.finish(of_a.run_id)


EnoughStarts = Callable[[Mapping[int, Sequence[float]]], Collection[int]]
"""Which measurements need no further start, by the median of each start so far."""


def measure_in_turns(
    device: Device,
    prepared: Sequence[PreparedMeasurement],
    output: Path,
    enough: EnoughStarts,
    progress: Progress = silent,
) -> list[StoredRun | RunError]:
    """Run the starts of several measurements in turns, every second round in reverse order.

    One that fails on the device does not end the others: its error takes its place. The device is
    locked, and all bundles were pushed to it.

    Raises:
        DeviceError: The device is gone. No measurement has a record.
    """
    with ExitStack() as stack:
        sides = [
            _Side(stack.enter_context(ExitStack()), device, each, output, progress)
            for each in prepared
        ]
        running = dict(enumerate(sides))
        for number in range(1, max(side.starts for side in sides) + 1):
            for place in list(running) if number % 2 else list(running)[::-1]:
                side = running[place]
                if number > side.starts or not side.attempt(
                    partial(Measurement.start, number=number)
                ):
                    del running[place]
            for place in enough({place: side.medians_ms for place, side in running.items()}):
                running.pop(place, None)
        return [side.finish() for side in sides]


class _Side:
    """One of several measurements; its first failure ends it alone."""

    def __init__(
        self,
        stack: ExitStack,
        device: Device,
        prepared: PreparedMeasurement,
        output: Path,
        progress: Progress,
    ) -> None:
        self._stack = stack
        self._measurement = stack.enter_context(
            open_measurement(device, prepared, output, progress)
        )
        self._error: RunError | None = None
        self.starts = self._measurement.starts

    @property
    def medians_ms(self) -> list[float]:
        """The median of each start so far, at the first size."""
        return self._measurement.medians_ms

    def attempt(self, act: Callable[[Measurement], object]) -> bool:
        """Whether the measurement did it; after a failure it is closed."""
        try:
            act(self._measurement)
        except RunError as error:
            self._error = error
            # Its contexts learn of the failure, and keep nothing but the runner's log.
            self._stack.__exit__(RunError, error, error.__traceback__)
            return False
        return True

    def finish(self) -> StoredRun | RunError:
        """The record, or why there is none."""
        found: list[StoredRun] = []
        if self._error is None:
            self.attempt(lambda measurement: found.append(measurement.finish()))
        return self._error or found[0]


@contextmanager
def _failing_as(letter: str) -> Iterator[None]:
    """Names the failed one in the message: both may be the same recipe with other values."""
    try:
        yield
    except RunError as error:
        error.message = f"{letter}: {error.message}"
        raise


def _named(letter: str, progress: Progress) -> Progress:
    def report(text: str, fraction: float | None = None) -> None:
        progress(f"{letter}: {text}", fraction)

    return report


def revision_of(path: Path) -> Revision:
    """The revision of the folder of `path`; empty outside a repository and for an ignored file."""
    folder = path.parent
    if not folder.is_dir():
        return Revision(None, None)
    head = run_git(folder, "rev-parse", "--verify", "HEAD")
    ignored = run_git(folder, "check-ignore", "--quiet", path.name) is not None
    if head is None or ignored:
        return Revision(None, None)
    changes = run_git(folder, "status", "--porcelain", "--", ".")
    return Revision(head.strip(), None if changes is None else bool(changes.strip()))
