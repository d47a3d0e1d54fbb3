"""The plan of an app: which ExecuTorch it has, and why."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.apps.platform import AppRuntime, platform_for
from etdeploy.apps.project import code_and_templates_digest
from etdeploy.backends.registry import backend_named
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.values import Explained
from etdeploy.graph.job import AppMaker, Job
from etdeploy.plan.components import RUNTIME, THREADPOOL
from etdeploy.plan.derive import Available, CustomKernels
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.folder import FORWARD
from etdeploy.program.generation import attention_of
from etdeploy.program.model import EMPTY_PROGRAM, Delegate, Method, Operator, Program
from etdeploy.recipe.another_backend import with_settings
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import ANDROID_ABIS

_STOCK = (
    "The attention is that of ExecuTorch's own operators: its release for apps has no kernel of "
    "etdeploy's, which is faster where texts are long."
)

_ATTENTION = "etdeploy::attention.out"


def app_plan(job: Job, program: Program | None, version: str) -> RuntimePlan:
    """What the app's ExecuTorch is; what keeps the app from having it is among the blockers."""
    platform, recipe = platform_for(job.target.system), job.loaded.recipe
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
        provider=Explained(
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
    )


def _refused(recipe: Recipe) -> Explained:
    """What stands in a plan for the ExecuTorch of an app that cannot have any."""
    named = recipe.app.runtime == "prebuilt"
    reason = "app.runtime is prebuilt" if named else "no other can have what the program needs"
    return Explained(name="app.runtime", value="prebuilt", reason=reason)


def built_plan(
    job: Job,
    program: Program | None,
    plan: RuntimePlan,
    available: Available,
    custom: CustomKernels | None,
) -> RuntimePlan:
    """The plan of an app's ExecuTorch that is built from a checkout."""
    from etdeploy.apps.android.native import app_plan as native_plan

    abi = abis_of(job)[0]
    made = native_plan(
        job.loaded.recipe, program or EMPTY_PROGRAM, abi, available, custom, job.host
    )
    return made.model_copy(
        update={"provider": plan.provider, "provisional": plan.provisional,
                "notes": (*made.notes, *plan.notes)}
    )  # fmt: skip


def _parts() -> Iterator[Explained]:
    for name in (RUNTIME, THREADPOOL):
        yield Explained(name=name, reason="every ExecuTorch for apps has it")


def _notes(job: Job) -> Iterator[str]:
    own = attention_of(job.asked.recipe)
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


def app_maker(job: Job) -> AppMaker:
    """Looks up what on this machine decides how the app is made."""
    platform = platform_for(job.target.system)
    given = job.app.given if job.app else None
    return AppMaker(
        project=code_and_templates_digest(platform),
        tools="" if given else platform.fingerprint(job.loaded.recipe),
        given=platform.read_archive(given)[0].sha256 if given else None,
    )


def abis_of(job: Job) -> tuple[str, ...]:
    """What an Android app's native libraries are for: the device, or what the recipe names."""
    own = [abi for abi, target in ANDROID_ABIS.items() if target == job.target.name]
    return tuple(own) if job.device and own else job.loaded.recipe.app.abis
