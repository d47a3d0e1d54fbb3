"""The plan of an app: which ExecuTorch it has, and why."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.apps.platform import AppRuntime, platform_for
from etdeploy.apps.project import maker_digest
from etdeploy.backends.registry import backend_named
from etdeploy.core.blocker import Blocker
from etdeploy.core.errors import BuildError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Explained
from etdeploy.graph.job import AppMaker, Job
from etdeploy.plan.components import RUNTIME, THREADPOOL
from etdeploy.plan.derive import Available, CustomKernels
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.attention import attention_of
from etdeploy.program.folder import FORWARD
from etdeploy.program.model import EMPTY_PROGRAM, Delegate, Method, Program
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import ANDROID_ABIS

_STOCK = (
    "The attention is that of ExecuTorch's own operators: its release for apps has no kernel of "
    "etdeploy's, which is faster where texts are long."
)


def app_plan(job: Job, program: Program | None, version: str) -> RuntimePlan:
    """What the app's ExecuTorch is; what keeps the app from having it is among the blockers.

    Args:
        job: Its recipe and target.
        program: What inspection found; None before the export.
        version: The release of ExecuTorch that the program is of.

    Raises:
        UsageError: There are no apps for the target.
    """
    platform, recipe = platform_for(job.target.system), job.loaded.recipe
    blockers: tuple[Blocker, ...] = ()
    try:
        runtime = platform.runtime(recipe, program or _least(recipe), version, abis_of(job))
    except BuildError as error:
        asked = Explained(name="app.runtime", value="prebuilt", reason="app.runtime is prebuilt")
        runtime = AppRuntime(asked)
        blockers = (Blocker("ExecuTorch's release", error.message, error.remedy or ""),)
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


def built_plan(
    job: Job,
    program: Program | None,
    plan: RuntimePlan,
    available: Available,
    custom: CustomKernels | None,
) -> RuntimePlan:
    """The plan of an app's ExecuTorch that is built from a checkout.

    Args:
        job: Its recipe and target.
        program: What inspection found; None before the export.
        plan: From `app_plan`, which says why it is built.
        available: The checkout and its options.
        custom: The recipe's own kernels.
    """
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
    """What is known of a program before the export: that it delegates to the recipe's backend."""
    delegate_id = None if recipe.model.program else backend_named(recipe.export.backend).delegate_id
    if delegate_id is None:
        return EMPTY_PROGRAM
    delegate = Delegate(backend_id=delegate_id, size_bytes=0)
    method = Method(
        name=FORWARD, inputs=(), outputs=(), operators=(), delegates=(delegate,), instructions=0,
        planned_memory_bytes=0,
    )  # fmt: skip
    return EMPTY_PROGRAM.model_copy(update={"methods": (method,)})


def app_maker(job: Job) -> AppMaker:
    """Looks up what on this machine decides how the app is made.

    Raises:
        UsageError: There are no apps for the target.
    """
    platform = platform_for(job.target.system)
    given = job.app.given if job.app else None
    return AppMaker(
        project=maker_digest(platform),
        tools="" if given else platform.fingerprint(job.loaded.recipe),
        given=sha256_file(given) if given else None,
    )


def abis_of(job: Job) -> tuple[str, ...]:
    """What an Android app's native libraries are for: the device, or what the recipe names."""
    own = [abi for abi, target in ANDROID_ABIS.items() if target == job.target.name]
    return tuple(own) if job.device and own else job.loaded.recipe.app.abis
