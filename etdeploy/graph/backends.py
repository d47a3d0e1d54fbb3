"""What the backends of a program need from a job: its SoC, its device, and what goes along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_named, backend_of, code_of
from etdeploy.backends.values import Destination, Extras, Partitions, Simulated, Workstation, merged
from etdeploy.core.errors import Blocker, CheckError, ExportError
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.job import Job
from etdeploy.plan.components import linked_backends
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.model import Program
from etdeploy.targets.ndk import soc_name


def wanted_soc(job: Job, backend: Backend) -> str | None:
    """The SoC to compile for, by the backend's name: the recipe's, or with `auto` the device's.

    None if neither is known.
    """
    named = job.loaded.recipe.export.soc
    if named != "auto":
        return soc_name(named, None, backend.socs)
    return _reported(job)


def backend_code(job: Job, program: Program | None) -> dict[str, str]:
    """Digests of the code of the backends that other packages bring, by name."""
    codes = {backend.name: code_of(backend) for backend in _backends(job, program)}
    return {name: code for name, code in codes.items() if code}


def bundle_inputs(job: Job, program: Program | None) -> dict[str, str | None]:
    """What on this machine goes into a bundle, for the backends that the job may use."""
    found: dict[str, str | None] = {}
    for backend in _backends(job, program):
        found |= backend.bundle_inputs(Workstation.this())
    return found


def require_device(job: Job) -> None:
    """Raises unless the device can run what the recipe exports."""
    recipe = job.loaded.recipe
    if recipe.model.program:
        return
    backend = backend_named(recipe.export.backend)
    blocker = backend.device_blocker(recipe.export.soc, _destination(job))
    if blocker:
        raise ExportError(blocker.why, remedy=blocker.remedy)


def missing_for_bundle(job: Job, plan: RuntimePlan, program: Program | None) -> Iterator[Blocker]:
    """What backends that the plan links, and the program, need and this machine does not have.

    ExecuTorch's release for apps has backends that its plan does not name one by one.
    """
    wanted = linked_backends(plan)
    if job.app and not job.app.given and plan.provider.value == Provider.PREBUILT:
        wanted = tuple(_of_program(program) if program else _backends(job, None))
    for backend in wanted:
        partitions = _partitions(job, backend, program, {})
        where = replace(_destination(job), soc=wanted_soc(job, backend))
        yield from backend.bundle_blockers(Workstation.this(), where, partitions)


def program_blockers(
    job: Job, program: Program | None, spec: ExportSpec | None = None
) -> Iterator[Blocker]:
    """What prevents a compiled program from running on the job's device.

    Before it is exported, what its spec shows of that.
    """
    if program is None and spec and not spec.is_finished:
        hybrid = spec.generation is not None and spec.generation.methods == "hybrid"
        methods = 2 if hybrid and spec.observation is None else 1
        backend = backend_named(str(spec.backend))
        if found := backend.request_blocker(spec.request, methods, _destination(job)):
            yield found
    for backend in _of_program(program):
        partitions = _partitions(job, backend, program, {})
        yield from backend.program_blockers(partitions, _destination(job))


def extras_for(job: Job, program: Program, versions: Mapping[str, str]) -> Extras:
    """What the backends of a program add to its bundle."""
    for blocker in program_blockers(job, program):
        raise CheckError(blocker.why, remedy=blocker.remedy)
    station, where = Workstation.this(), _destination(job)
    return merged(
        backend.extras(station, where, _partitions(job, backend, program, versions))
        for backend in _of_program(program)
    )


def bundle_notes(job: Job, program: Program | None, versions: Mapping[str, str]) -> tuple[str, ...]:
    """What to know about the bundle of a program; nothing for a program that is not there yet."""
    return tuple(
        note
        for backend in _of_program(program)
        for note in backend.bundle_notes(
            Workstation.this(), _destination(job), _partitions(job, backend, program, versions)
        )
    )


def is_simulated(job: Job) -> bool:
    """Whether a simulator would compute on the job's device what the recipe's backend exports."""
    backend = backend_named(job.loaded.recipe.export.backend)
    found = backend.simulated(Workstation.this(), _destination(job), Partitions())
    return found is not None


def simulation_for(job: Job, program: Program) -> Simulated | None:
    """What simulates the program's processor on the job's device; None if nothing does."""
    station, where = Workstation.this(), _destination(job)
    simulations = (
        backend.simulated(station, where, _partitions(job, backend, program, {}))
        for backend in _of_program(program)
    )
    return next(filter(None, simulations), None)


def _backends(job: Job, program: Program | None) -> list[Backend]:
    """The recipe's, unless the program is finished, and those that the program names."""
    recipe = job.loaded.recipe
    wanted = [] if recipe.model.program else [backend_named(recipe.export.backend)]
    return list({backend.name: backend for backend in (*wanted, *_of_program(program))}.values())


def _of_program(program: Program | None) -> list[Backend]:
    found = map(backend_of, program.backend_ids if program else ())
    return [backend for backend in found if backend]


def _partitions(
    job: Job, backend: Backend, program: Program | None, versions: Mapping[str, str]
) -> Partitions:
    delegate_id, recipe = str(backend.delegate_id), job.loaded.recipe
    finished = recipe.model.program is not None
    return Partitions(
        program.compiled_by(delegate_id) if program else (),
        versions,
        finished,
        None if finished else recipe.export.quantization,
        methods=program.methods_on(delegate_id) if program else 0,
    )


def _destination(job: Job) -> Destination:
    return Destination(
        job.target,
        job.device_label,
        reports=job.facts is not None,
        is_here=job.device is not None and job.device.capabilities.is_here,
        soc=_reported(job),
    )


def _reported(job: Job) -> str | None:
    return job.facts.soc if job.facts else None
