"""Exports and measures combinations of settings on one device."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.verdict import wrong_outputs
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel, console
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted, RunError
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Progress
from etdeploy.graph.backends import is_simulated
from etdeploy.graph.job import Job, StepName, load_program
from etdeploy.graph.jobs import ConnectedDevice, Member, RecipeDevicePair, make_job, run_interleaved
from etdeploy.graph.on_device import device_lock, prepared, pushed_line
from etdeploy.graph.run import Ready, look_up, refused_of, run_jobs
from etdeploy.graph.tasks.steps import heavy_at_once
from etdeploy.program.folder import load_provenance
from etdeploy.recipe.document import SourceLocation
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import Target
from etdeploy.tune.journal import MeasuredCandidate, ProgramFailed, ProgramMade, SessionEnded
from etdeploy.tune.metrics import (
    ENERGY,
    PEAK_MEMORY,
    has_high_loss,
    program_figures,
    record_figures,
    record_series,
)
from etdeploy.tune.space import BACKEND, Combination, changed_recipe

STARTS = 3
# A combination whose starts take so many times as long as those of the fastest is dominated.
_DOMINATED = 1.3
# One start may be disturbed by a third, hardly two.
_DOMINATED_AT_ONCE = 2.5
_MEASURE = "measure"
# Of a run that only shows which layers there are.
_PROFILE_ONLY = {
    "benchmark.runs": 1,
    "benchmark.warmup": 0,
    "benchmark.iterations": 1,
    "benchmark.memory": False,
    "benchmark.profile": True,
    "benchmark.sustained_s": 0,
}


@dataclass
class Workbench:
    """One recipe on one device, whose programs are made when they are needed.

    Attributes:
        base: The recipe as it is.
        device: The device, which stays open.
        workspace: The cache.
        target: What the runner is for; None for the device's own.
        output: The folder for run records.
        quiet: Whether nothing is shown.
        metrics: Names of the objective and the limits.
    """

    base: LoadedRecipe
    device: ConnectedDevice
    workspace: Workspace
    output: Path
    metrics: frozenset[str]
    target: Target | None = None
    quiet: bool = False
    _ready: dict[str, Job] = field(default_factory=dict)

    def changed(self, changes: Mapping[str, Any], origin: str = "etdeploy tune") -> LoadedRecipe:
        """The recipe with other values."""
        given = self.base.recipe.model_dump(mode="json", exclude_unset=True)
        recipe = changed_recipe(given, changes)
        places = dict(self.base.places)
        for key in changes:
            places[tuple(key.split("."))] = SourceLocation(origin)
        return replace(self.base, recipe=recipe, places=places)

    def job(self, program: str) -> Job:
        """The job that makes a program, which has a state folder apart from other programs'."""
        changes = json.loads(program)
        loaded = self.changed(changes) if changes else self.base
        job = make_job(loaded, self.workspace, self.output, self.device, self.target, True)
        return replace(job, variant=f"#tune-{digest_json(changes)[:12]}")

    def unusable_backends(self, names: Sequence[str]) -> dict[str, str]:
        """The backends that cannot be exported for or run here, each with the reason."""
        found: dict[str, str] = {}
        for name in names:
            try:
                self._require_usable(name)
            except EtdeployError as error:
                found[name] = error.message.splitlines()[0]
            except ValueError:  # the recipe's scheme is not the backend's: others may be
                continue
        return found

    def _require_usable(self, name: str) -> None:
        # Keys of the export are the backend's own, or of a scheme that it may not have.
        given: dict[str, Any] = self.base.recipe.model_dump(mode="json", exclude_unset=True)
        given["export"] = _bare(given)
        loaded = replace(self.base, recipe=changed_recipe(given, {BACKEND: name}))
        job = make_job(loaded, self.workspace, self.output, self.device, self.target, True)
        if is_simulated(job):
            raise DeviceError("a simulator would run it, whose times mean nothing")
        member = Member(RecipeDevicePair(name, job.device_label), loaded, job)
        ready, failed = look_up([member])
        for end in (*failed, *refused_of(ready)):
            if isinstance(end.error, EtdeployError):
                raise end.error

    def make(self, programs: Sequence[str], label: str) -> list[ProgramMade | ProgramFailed]:
        """Export and build programs, unless the cache has them."""
        began_s = time.monotonic()
        members = [self._member(program, label) for program in programs]
        for member in members:
            self.workspace.sweep(member.require_job().state)
        ready, failed = look_up(members)
        known = {each.member.pair: each.resolved.exported is not None for each in ready}
        refused = refused_of(ready)
        out = {end.member.pair for end in refused}
        rest = [each for each in ready if each.member.pair not in out]
        ends = [*failed, *refused, *self._run(rest)]
        seconds = (time.monotonic() - began_s) / len(programs)
        by_pair = {member.pair: program for member, program in zip(members, programs, strict=True)}
        found: list[ProgramMade | ProgramFailed] = []
        for end in ends:
            program = by_pair[end.member.pair]
            if end.stopped:
                raise Interrupted
            if end.error:
                if not isinstance(end.error, EtdeployError):
                    raise end.error
                reason = end.error.message.splitlines()[0]
                found.append(ProgramFailed(program=program, seconds=seconds, reason=reason))
            else:
                is_new = not known.get(end.member.pair, False)
                found.append(self._made(end.member.require_job(), program, seconds, is_new))
        return found

    def _run(self, ready: Sequence[Ready]) -> Sequence[Any]:
        if not ready:
            return []
        with console.TaskDisplay(quiet=self.quiet) as display:
            return run_jobs(ready, StepName.BUNDLE, display, heavy=heavy_at_once())

    def _member(self, program: str, label: str) -> Member:
        job = self.job(program)
        number = list(self._ready).index(program) if program in self._ready else len(self._ready)
        name = label if len(label) < 60 else f"program {number}"
        return Member(RecipeDevicePair(name, job.device_label), job.loaded, job)

    def _made(self, job: Job, program: str, seconds: float, is_new: bool) -> ProgramMade:
        self._ready[program] = job
        exported, info = load_program(job)
        made = load_provenance(Path(exported.folder))
        return ProgramMade(
            program=program,
            seconds=seconds,
            is_new=is_new,
            figures=program_figures(info, made),
            has_high_loss=has_high_loss(made),
            notes=made.notes,
        )

    def measurement(self, candidate: Combination, starts: int, *, full: bool) -> Job:
        """The job of a candidate as it is measured; its program was made before.

        `full` measures memory, and energy where that is asked for.
        """
        job = self._ready[candidate.program]
        wants_energy = ENERGY in self.metrics and full
        sustained_s = self.base.recipe.benchmark.sustained_s if wants_energy else 0
        changes = {
            **dict(candidate.changes),
            "benchmark.runs": starts,
            "benchmark.profile": False,
            "benchmark.memory": full,
            "benchmark.sustained_s": sustained_s,
        }
        return replace(job, loaded=self.changed(changes))

    def measure(
        self, candidates: Sequence[Combination], known: Collection[str], phase: str, starts: int
    ) -> SessionEnded:
        """Measure candidates in turns; `known` are those whose memory was measured before.

        Raises:
            DeviceError: The device is gone.
        """
        began_s = time.monotonic()
        self._require(candidates)
        jobs = [
            self.measurement(
                each, starts, full=each.key not in known or PEAK_MEMORY in self.metrics
            )
            for each in candidates
        ]
        runs = self._in_turns(jobs, phase, candidates)
        measured, failed = [], {}
        for candidate, job, run in zip(candidates, jobs, runs, strict=True):
            if isinstance(run, RunError):
                failed[candidate.key] = run.message.splitlines()[0]
            else:
                measured.append(self._measured(candidate, job, run))
        return SessionEnded(
            phase=phase, measured=tuple(measured), failed=failed,
            seconds=time.monotonic() - began_s,
        )  # fmt: skip

    def _require(self, candidates: Sequence[Combination]) -> None:
        """Make programs of an earlier process again; most are in the cache."""
        for candidate in candidates:
            if candidate.program in self._ready:
                continue
            [end] = self.make([candidate.program], candidate.label)
            if isinstance(end, ProgramFailed):
                raise RunError(f"{candidate.label}: {end.reason}")

    def _in_turns(
        self, jobs: Sequence[Job], phase: str, candidates: Sequence[Combination]
    ) -> list[StoredRun | RunError]:
        from etdeploy.bench.measure import measure_in_turns

        device = self.device.device
        what = f"{console.count(len(candidates), 'combination')} in turns"
        with self._shown(phase, what) as tell, device_lock(jobs[0], tell):
            ready = [prepared(job) for job in jobs]
            for each in ready:
                tell(pushed_line(device.push(each.bundle, tell)))
            cancel.checkpoint()
            return measure_in_turns(device, ready, self.output, dominated, tell)

    @contextmanager
    def _shown(self, phase: str, done: str) -> Iterator[Progress]:
        with (
            console.TaskDisplay(quiet=self.quiet, steps=False) as display,
            console.lazy_task(display, f"{_MEASURE} ({phase})", done) as tell,
        ):
            yield tell

    def _measured(self, candidate: Combination, job: Job, run: StoredRun) -> MeasuredCandidate:
        exported, _ = load_program(job)
        wrong = wrong_outputs(run.record)
        differ = f"{wrong[0].name} is not what the model gives" if wrong else ""
        if run.record.simulated:
            differ = f"simulated by {run.record.simulated.by}, whose times mean nothing"
        return MeasuredCandidate(
            candidate=candidate.key,
            series=record_series(run),
            figures=record_figures(run, Path(exported.folder)),
            record=str(run.folder),
            outputs_differ=differ,
        )

    def compare(self, a: Combination, b: Combination, pairs: int) -> tuple[StoredRun, StoredRun]:
        """Measure two candidates start by start, as `etdeploy compare` does."""
        self._require((a, b))
        first, second = (self.measurement(each, pairs, full=True) for each in (a, b))
        what = f"{console.count(pairs, 'pair')} of starts"
        with self._shown("compare", what) as tell:
            return run_interleaved(first, second, tell, in_history=False)

    def profile_layers(self, candidate: Combination) -> tuple[str, ...]:
        """The first and the last layer with weights, from a profile; empty if it names none."""
        from etdeploy.bench.measure import measure
        from etdeploy.profile.profiled import profile_of

        job = replace(self._ready[candidate.program], loaded=self.changed(_PROFILE_ONLY))
        device = self.device.device
        with self._shown("layers", "the layers with weights") as tell:
            try:
                with device_lock(job, tell):
                    ready = prepared(job)
                    device.push(ready.bundle, tell)
                    run = measure(device, ready, self.output, tell)
                profile = profile_of(run, self.workspace, tell)
            except (Interrupted, DeviceError):
                raise
            except EtdeployError:
                return ()
        return layers_with_weights([(span.name, span.module) for span in profile.spans])


_WEIGHTED = ("conv", "linear", "fully connected", "addmm")


def layers_with_weights(spans: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The first and the last module that a node with weights belongs to, by name and module."""
    modules = [
        module.split(",")[0]
        for name, module in spans
        if module and any(word in name.lower() for word in _WEIGHTED)
    ]
    return tuple(dict.fromkeys((modules[0], modules[-1]))) if modules else ()


def _bare(given: Mapping[str, Any]) -> dict[str, Any]:
    """The section `export` with what every backend takes."""
    export = given.get("export", {})
    kept = {key: export[key] for key in ("seed", "strict", "custom_ops") if key in export}
    generation = export.get("generation")
    context = (generation or {}).get("context")
    if generation is not None:
        kept["generation"] = {} if context is None else {"context": context}
    return kept


def dominated(medians_ms: Mapping[int, Sequence[float]]) -> list[int]:
    """The candidates that cannot become the fastest any more, by their place."""
    fastest = min((min(times) for times in medians_ms.values() if times), default=0.0)
    return [
        place
        for place, times in medians_ms.items()
        if (len(times) > 1 and min(times) > _DOMINATED * fastest)
        or (times and min(times) > _DOMINATED_AT_ONCE * fastest)
    ]
