"""The plan of an app: which ExecuTorch it has, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from etdeploy.apps.platform import AppRuntime, Platform
from etdeploy.apps.project import code_and_templates_digest
from etdeploy.backends.registry import backend_named
from etdeploy.core.errors import Blocker, BuildError, UsageError
from etdeploy.core.values import ReasonedChoice
from etdeploy.graph.job import AppInputs, Job
from etdeploy.plan.components import RUNTIME, THREADPOOL
from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.folder import FORWARD
from etdeploy.program.generation import attention_of
from etdeploy.program.model import EMPTY_PROGRAM, Delegate, Method, Operator, Program
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.remedies import with_settings
from etdeploy.targets.platforms import ANDROID_ABIS, Target, find_target, host_target

_STOCK = (
    "The attention is that of ExecuTorch's own operators: its release for apps has no kernel of "
    "etdeploy's, which is faster where texts are long."
)

_ATTENTION = "etdeploy::attention.out"
# In an app, and different from a runner: its Java API takes inputs with the one, and shows messages
# in the log with the other. The C++ runtime is linked in, as in the published library: the shared
# one of fbjni's AAR may be older than the NDK's.
_FOR_APPS = (
    ReasonedChoice(
        name="EXECUTORCH_BUILD_EXTENSION_RUNNER_UTIL",
        value="ON",
        reason="the Java API makes a method's inputs with it",
    ),
    ReasonedChoice(
        name="EXECUTORCH_PAL_DEFAULT",
        value="android",
        reason="an app's messages are in the log, and nobody sees its stderr",
    ),
)


@dataclass(frozen=True)
class PlatformPlanner:
    """Plans the apps of a platform."""

    platform: Platform

    def app_plan(self, job: Job, program: Program | None, version: str) -> RuntimePlan:
        """Return the plan of a release, or say why only a build has what the app needs."""
        platform, recipe = self.platform, job.loaded.recipe
        blockers: tuple[Blocker, ...] = ()
        try:
            runtime = platform.runtime(recipe, program or _least(recipe), version, abis_of(job))
        except BuildError as error:
            runtime = AppRuntime(_refused(recipe))
            remedy = with_settings(error.remedy or "", recipe)
            blockers = (Blocker("ExecuTorch for the app", error.message, remedy),)
        return RuntimePlan(
            target=job.target.name,
            build_target=job.target.name,
            portable_runner=False,
            provider=ReasonedChoice(
                name="provider",
                value=Provider(str(runtime.name.value)),
                reason=runtime.name.reason,
                by_hand=recipe.app.runtime != "auto",
            ),
            executorch_version=version,
            toolchain=None,
            components=(*runtime.packages, *_parts()),
            options=(),
            program_sha256=program.sha256 if program else None,
            provisional=program is None,
            blockers=blockers,
            notes=tuple(_notes(job)),
            custom_ops=runtime.custom_ops,
        )

    def built_plan(
        self,
        job: Job,
        program: Program | None,
        plan: RuntimePlan,
        available: Available,
        custom: CustomKernels | None,
    ) -> RuntimePlan:
        """The plan of an app's ExecuTorch that is built from a checkout."""
        recipe, abi = job.loaded.recipe, abis_of(job)[0]
        made = library_plan(recipe, program or EMPTY_PROGRAM, abi, available, custom, job.host)
        return made.model_copy(
            update={"provider": plan.provider, "provisional": plan.provisional,
                    "notes": (*made.notes, *plan.notes)}
        )  # fmt: skip

    def inputs(self, job: Job) -> AppInputs:
        """Looks up what on this machine decides how the app is made."""
        platform = self.platform
        given = job.app.given if job.app else None
        return AppInputs(
            project=code_and_templates_digest(platform),
            tools="" if given else platform.fingerprint(job.loaded.recipe),
            given=platform.read_archive(given)[0].sha256 if given else None,
        )


def _refused(recipe: Recipe) -> ReasonedChoice:
    """What stands in a plan for the ExecuTorch of an app that cannot have any."""
    named = recipe.app.runtime == "prebuilt"
    reason = "app.runtime is prebuilt" if named else "no other can have what the program needs"
    return ReasonedChoice(name="app.runtime", value="prebuilt", reason=reason)


def library_plan(
    recipe: Recipe,
    program: Program,
    abi: str,
    available: Available,
    custom: CustomKernels | None = None,
    host: Target | None = None,
) -> RuntimePlan:
    """The plan of the native library for an ABI: as that of a runner, and without a tracer."""
    changed = recipe.model_copy(
        update={
            "runtime": recipe.runtime.model_copy(update={"provider": "source"}),
            "benchmark": recipe.benchmark.model_copy(update={"profile": False}),
        }
    )
    target = find_target(ANDROID_ABIS[abi])
    plan = derive_plan(changed, program, target, host or host_target(), available, custom)
    by_hand = {option.name for option in plan.options if option.by_hand}
    own = {option.name: option for option in _FOR_APPS if option.name not in by_hand}
    derived = (option for option in plan.options if option.name not in own)
    return plan.model_copy(update={"options": (*derived, *own.values())})


def _parts() -> Iterator[ReasonedChoice]:
    for name in (RUNTIME, THREADPOOL):
        yield ReasonedChoice(name=name, reason="every ExecuTorch for apps has it")


def _notes(job: Job) -> Iterator[str]:
    own = attention_of(job.original_recipe.recipe)
    used = attention_of(job.loaded.recipe)
    if own and used and own[0] != used[0]:
        yield _STOCK


def _least(recipe: Recipe) -> Program:
    """What is known of a program before the export: its backend, and whose attention it has."""
    if recipe.model.program:
        return EMPTY_PROGRAM
    delegate_id = backend_named(recipe.export.backend).delegate_id
    delegates = (Delegate(backend_id=delegate_id, size_bytes=0),) if delegate_id else ()
    attention = attention_of(recipe)
    own = attention is not None and attention[0] == "kernel"
    method = Method(
        name=FORWARD,
        inputs=(),
        outputs=(),
        operators=(Operator(name=_ATTENTION, calls=1),) if own else (),
        delegates=delegates,
        instructions=0,
        planned_memory_bytes=0,
    )
    return EMPTY_PROGRAM.model_copy(update={"methods": (method,)})


def platform_for(system: str, *, library: bool = False) -> Platform:
    """Return the platform of a target's system; raise UsageError where there are no apps."""
    if library:
        from etdeploy.apps.library import AndroidLibrary, IosLibrary

        return AndroidLibrary() if system == "android" else IosLibrary()
    if system == "android":
        from etdeploy.apps.android.platform import Android

        return Android()
    if system == "ios":
        from etdeploy.apps.ios.platform import Ios

        return Ios()
    raise UsageError(f"there are no apps for {system}", remedy="Apps are made for android and ios.")


def platform_of(job: Job) -> Platform:
    """The platform of a job with an app."""
    if not isinstance(job.app_planner, PlatformPlanner):
        raise RuntimeError(f"{job.loaded.name} has no app")
    return job.app_planner.platform


def abis_of(job: Job) -> tuple[str, ...]:
    """What an Android app's native libraries are for: the device, or what the recipe names."""
    own = [abi for abi, target in ANDROID_ABIS.items() if target == job.target.name]
    return tuple(own) if job.device and own else job.loaded.recipe.app.abis
