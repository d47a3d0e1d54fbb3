"""Looks up once everything that determines a job's steps: program, kernels, checkout and plan.

After that, making the steps reads nothing, and neither does deriving a plan from what was found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from etdeploy.backends.registry import backend_named
from etdeploy.cache.folder import CacheKind
from etdeploy.core.errors import BuildError
from etdeploy.core.hashing import digest_json
from etdeploy.export.cache import ExportContext
from etdeploy.export.derive import export_spec
from etdeploy.export.hf.check import fit_context
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.backends import backend_code, bundle_inputs, wanted_soc
from etdeploy.graph.job import AppInputs, AppPlanner, Job
from etdeploy.plan.cmake_options import OptionTable
from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.folder import PROGRAM_FILE, PROGRAM_INFO, REWRITES, load_provenance
from etdeploy.program.generation import Generation
from etdeploy.program.model import Program
from etdeploy.provider.checkout import Checkout, find_checkout, read_options
from etdeploy.provider.wheel import executorch_version
from etdeploy.recipe.sections.benchmark import BenchmarkGeneration
from etdeploy.runner.fingerprint import rules_digest, runner_fingerprint
from etdeploy.targets.platforms import find_target

if TYPE_CHECKING:
    from etdeploy.custom_ops.kernels import CustomOps
    from etdeploy.export.finished import DraftProgram


T = TypeVar("T")


class Lookups:
    """Answers that hold for one invocation, by what was asked."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def memoize(self, question: Hashable, look: Callable[[], T]) -> T:
        """The answer of an earlier job, or that of `look`."""
        if question not in self._answers:
            self._answers[question] = look()
        return cast("T", self._answers[question])


@dataclass(frozen=True)
class CachedProgram:
    """The program in the cache that an export now would produce again.

    Attributes:
        folder: Its folder in the cache.
        program: What inspection found in it.
        versions: Of what exported it, if known.
        generation: How it generates text; None for another program.
        rewrites: What rewrites of its graph did; None where none were tried.
    """

    folder: Path
    program: Program
    versions: Mapping[str, str]
    generation: Generation | None = None
    rewrites: Mapping[str, Any] | None = None

    @property
    def path(self) -> Path:
        """The program file."""
        return self.folder / PROGRAM_FILE


@dataclass(frozen=True)
class BuildCheckout:
    """The checkout that a build would use.

    Attributes:
        checkout: None if there is none yet, so that a run clones it, or if the named one cannot be
            used.
        problem: Why the named checkout cannot be used.
        options: The cmake options that it has.
    """

    checkout: Checkout | None = None
    problem: BuildError | None = None
    options: OptionTable | None = None

    def require_usable(self) -> None:
        """Raises the problem, if there is one."""
        if self.problem:
            raise self.problem


@dataclass(frozen=True)
class Resolved:
    """A job with everything that was looked up for it.

    Attributes:
        job: What a run works on.
        export_spec: What to export; `soc: auto` is replaced by the device's SoC.
        program_key: The program's key in the cache; None if only an export can determine it.
        export_known: A digest of everything that is known of the export before it runs.
        exported: The program in the cache, if it is exported and up to date.
        program: What the plan is derived from; also a finished program, which needs no export.
            None if only the recipe is known.
        custom_ops: The recipe's own kernels.
        sources: Of a build; None if the plan uses the wheel.
        plan: From the program, or from the recipe alone if that is not exported yet.
        fingerprints: Of the runner's sources and compiler, by the targets that may be built for.
        rules: Digest of the code that decides: another release of etdeploy may decide otherwise.
        bundle_inputs: What on this machine goes into a bundle for the program's backends.
        wheel_version: The release of ExecuTorch whose wheel is used.
        app: What on this machine decides how an app is made; None for a runner.
        lookups: What was found for all jobs of the invocation.
        draft: The program that proposes tokens; None unless the recipe names one.
    """

    job: Job
    export_spec: ExportSpec
    program_key: str | None
    export_known: str
    exported: CachedProgram | None
    program: Program | None
    custom_ops: CustomOps | None
    sources: BuildCheckout | None
    plan: RuntimePlan
    fingerprints: Mapping[str, str]
    rules: str
    bundle_inputs: Mapping[str, str | None]
    wheel_version: str
    app: AppInputs | None
    lookups: Lookups = field(compare=False, repr=False)
    draft: DraftProgram | None = None

    @property
    def checkout(self) -> Checkout | None:
        """The checkout, if there is one that can be used."""
        return self.sources.checkout if self.sources else None

    def provisional_plan(self) -> RuntimePlan:
        """The plan derived from the recipe alone."""
        return self.with_program(None).plan

    def with_program(self, program: Program | None) -> Resolved:
        """The same job with the plan for another program.

        Looks up the sources if the plan needs them now and did not before.
        """
        plan, sources = _plan(
            self.job, program, self.custom_ops, self.sources, self.wheel_version, self.lookups,
            self.draft,
        )  # fmt: skip
        return replace(self, plan=plan, program=program, sources=sources)


def resolve(job: Job, lookups: Lookups | None = None) -> Resolved:
    """Looks up everything.

    Raises:
        UsageError: The finished program is damaged, or not a program.
        BuildError: The folder of the recipe's own kernels cannot be used, or a derived option is
            unknown to the checkout. A checkout that cannot be used is not an error here: the plan
            can still be shown, and a run raises it before it starts.
    """
    lookups = lookups or Lookups()
    spec = export_spec_of(job)
    situation, key = _situation(job, spec, lookups)
    exported = _exported_before(job, key)
    if exported is None and not job.measures:
        spec = spec.model_copy(update={"etrecord": False})
        situation, key = _situation(job, spec, lookups)
        exported = _exported_before(job, key)
    custom_ops = _custom_ops_of(job)
    version = executorch_version()
    program = exported.program if exported else _finished(job)
    draft = _draft_of(job, lookups)
    plan, sources = _plan(job, program, custom_ops, None, version, lookups, draft)
    return Resolved(
        job=job,
        export_spec=spec,
        program_key=key,
        export_known=situation.memory_path.stem,
        exported=exported,
        program=program,
        custom_ops=custom_ops,
        sources=sources,
        plan=plan,
        fingerprints=_fingerprints(job, lookups),
        rules=_rules(job, program, lookups),
        bundle_inputs=bundle_inputs(job, program),
        wheel_version=version,
        app=job.app_planner.inputs(job) if job.app_planner else None,
        lookups=lookups,
        draft=draft,
    )


def export_spec_of(job: Job) -> ExportSpec:
    """What to export and for what; `soc: auto` becomes the SoC that the device reports."""
    places = job.loaded.places
    spec = fit_context(export_spec(job.loaded.recipe, places, job.target.arch), places)
    soc = wanted_soc(job, backend_named(str(spec.backend))) if spec.soc else None
    changes: dict[str, Any] = {"speech": job.speech, **({"soc": soc} if soc else {})}
    observation = job.observation
    observes = observation and (observation.nodes != () or observation.sensitivity)
    # With one, a language model's program is that of one call, even if no node is observed.
    if observation and (observes or spec.generation):
        # The program runs once, with the example inputs, and is not measured.
        changes |= {"observation": observation, "etrecord": False, "profiled": False, "sizes": {}}
    return spec.model_copy(update=changes)


def _situation(job: Job, spec: ExportSpec, lookups: Lookups) -> tuple[ExportContext, str | None]:
    def look() -> tuple[ExportContext, str | None]:
        situation = ExportContext.now(spec, job.workspace)
        return situation, situation.known_key()

    return lookups.memoize(("export", spec.model_dump_json()), look)


def _rules(job: Job, program: Program | None, lookups: Lookups) -> str:
    """The digest of the code that decides, with that of the job's backends of other packages."""
    own = lookups.memoize("rules", rules_digest)
    plugged = backend_code(job, program)
    return digest_json([own, plugged]) if plugged else own


def _exported_before(job: Job, key: str | None) -> CachedProgram | None:
    entry = job.workspace.entry(CacheKind.PROGRAMS, key) if key else None
    if entry is None or not entry.is_sound():
        return None
    made = load_provenance(entry.path)
    program = Program.load(entry.path / PROGRAM_INFO)
    return CachedProgram(
        entry.path, program, made.versions, made.generation, made.details.get(REWRITES)
    )


def _finished(job: Job) -> Program | None:
    """A program that needs no export. If its file is missing, the export step reports it."""
    named = job.loaded.recipe.model.program
    if not named or not Path(named).is_file():
        return None
    from etdeploy.program.inspect import inspect_file

    return inspect_file(Path(named))


def _draft_of(job: Job, lookups: Lookups) -> DraftProgram | None:
    """The draft that the recipe names; apps generate without one, and no text is observed."""
    named = (job.loaded.recipe.benchmark.generation or BenchmarkGeneration()).draft
    if named is None or job.app or job.observation:
        return None
    from etdeploy.export.finished import read_draft

    place = job.loaded.places.get(("benchmark", "generation", "speculation"))
    where = str(place or job.loaded.path)
    return lookups.memoize(("draft", named, where), lambda: read_draft(Path(named), where))


def _custom_ops_of(job: Job) -> CustomOps | None:
    runtime = job.loaded.recipe.runtime
    if runtime.custom_ops is None:
        return None
    from etdeploy.custom_ops.kernels import read_custom_ops

    return read_custom_ops(Path(runtime.custom_ops), runtime.custom_ops_target)


def _find_sources(job: Job, version: str, lookups: Lookups) -> BuildCheckout:
    named = job.loaded.recipe.runtime.source
    try:
        found = lookups.memoize(
            ("checkout", named, version),
            lambda: find_checkout(named, os.environ, job.workspace, version),
        )
    except BuildError as error:
        place = job.loaded.places.get(("runtime", "source")) if named else None
        error.place = str(place) if place else None
        return BuildCheckout(problem=error)
    return BuildCheckout(found, options=read_options(found.folder)) if found else BuildCheckout()


def _fingerprints(job: Job, lookups: Lookups) -> dict[str, str]:
    """For both targets: only the plan decides which of the two is built for."""
    if job.app:
        return {}
    candidates = {job.target.name, job.target.portable or job.target.name}
    return {name: _fingerprint(job, name, lookups) for name in sorted(candidates)}


def _fingerprint(job: Job, target: str, lookups: Lookups) -> str:
    return lookups.memoize(
        ("runner", target), lambda: runner_fingerprint(job.host, find_target(target))
    )


def _plan(
    job: Job,
    program: Program | None,
    own: CustomOps | None,
    sources: BuildCheckout | None,
    wheel_version: str,
    lookups: Lookups,
    draft: DraftProgram | None,
) -> tuple[RuntimePlan, BuildCheckout | None]:
    """The plan, and the sources, which are looked up if it needs them and they are not known."""
    if job.app_planner:
        return _app_plan(job, job.app_planner, program, own, sources, wheel_version, lookups)
    plan = _derive(job, program, own, sources, wheel_version, draft)
    if sources or plan.provider.value != Provider.SOURCE:
        return plan, sources
    found = _find_sources(job, wheel_version, lookups)
    return _derive(job, program, own, found, wheel_version, draft), found


def _app_plan(
    job: Job,
    planner: AppPlanner,
    program: Program | None,
    own: CustomOps | None,
    sources: BuildCheckout | None,
    wheel_version: str,
    lookups: Lookups,
) -> tuple[RuntimePlan, BuildCheckout | None]:
    """The same for an app, whose ExecuTorch is a release unless that lacks something."""
    plan = planner.app_plan(job, program, wheel_version)
    if plan.provider.value != Provider.SOURCE or job.target.system != "android":
        return plan, sources
    found = sources or _find_sources(job, wheel_version, lookups)
    available, custom = _available(found, wheel_version), _custom(own)
    return planner.built_plan(job, program, plan, available, custom), found


def _derive(
    job: Job,
    program: Program | None,
    own: CustomOps | None,
    sources: BuildCheckout | None,
    wheel_version: str,
    draft: DraftProgram | None,
) -> RuntimePlan:
    available = _available(sources, wheel_version)
    recipe = job.loaded.recipe
    drafts = draft.program if draft else None
    return derive_plan(recipe, program, job.target, job.host, available, _custom(own), drafts)


def _available(sources: BuildCheckout | None, wheel_version: str) -> Available:
    checkout = sources.checkout if sources else None
    return Available(
        checkout.version if checkout else wheel_version,
        options=sources.options if sources else None,
        wheel_version=wheel_version,
    )


def _custom(own: CustomOps | None) -> CustomKernels | None:
    return CustomKernels(own.operators, own.digest) if own else None
