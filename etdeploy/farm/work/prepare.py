"""What a night exports and builds, each distinct thing once, as artifacts for its devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from etdeploy.cache.workspace import Workspace
from etdeploy.core import console
from etdeploy.core.console import lazy_task
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceState,
    Leftover,
    PushReport,
    RunFolder,
)
from etdeploy.farm.model import AttemptFailure, AvailableDevice, BuildArtifact
from etdeploy.farm.work.artifact import failure_of
from etdeploy.graph.job import AppOptions, Job, StepName
from etdeploy.graph.jobs import ConnectedDevice, Member, RecipeDevicePair, make_job
from etdeploy.graph.on_device import prepared
from etdeploy.graph.run import JobEnd, Ready, look_up, refused_of, run_jobs
from etdeploy.graph.tasks.steps import Slots, heavy_at_once
from etdeploy.recipe.load import LoadedRecipe

Key = tuple[str, str]
"""The label of a recipe, and the identity of a device."""


@dataclass(frozen=True)
class PreparedArtifacts:
    """What a night can measure.

    While this exists, nobody removes its artifacts from the cache.

    Attributes:
        artifacts: By recipe and device.
        failures: Why there is none, by the same.
        workspace: Marks what is used.
    """

    artifacts: Mapping[Key, BuildArtifact]
    failures: Mapping[Key, AttemptFailure]
    workspace: Workspace | None = field(default=None, repr=False)


def group_by_class(
    offers_by_recipe: Mapping[str, Sequence[AvailableDevice]],
) -> dict[tuple[str, DeviceClass], tuple[AvailableDevice, ...]]:
    """Who shares an artifact: the devices of each recipe by their class, in the order of offers.

    A device that cannot be used and never said what it is has none.
    """
    found: dict[tuple[str, DeviceClass], list[AvailableDevice]] = {}
    for label, offers in offers_by_recipe.items():
        for offer in offers:
            if offer.facts.target:
                found.setdefault((label, DeviceClass.of(offer)), []).append(offer)
    return {key: tuple(each) for key, each in found.items()}


def prepare(
    recipes: Mapping[str, LoadedRecipe],
    offers_by_recipe: Mapping[str, Sequence[AvailableDevice]],
    output: Path,
    display: console.TaskDisplay,
    *,
    heavy: int | None = None,
    slots: Slots | None = None,
    workspace: Workspace | None = None,
    apps: Mapping[str, Path] | None = None,
) -> PreparedArtifacts:
    """Exports and builds for every device that is offered to a recipe.

    What is the same for several recipes or devices is done once, and what is in the cache already
    not at all. The failure of one stops none of the others.

    """
    workspace = workspace or Workspace.opened()
    workspace.uses.mark_live()
    classes = group_by_class(offers_by_recipe)
    failures = _unknown(offers_by_recipe)
    given = apps or {}
    members = [
        make_member(label, recipes[label], offers[0], output, workspace, given.get(label))
        for (label, _), offers in classes.items()
    ]
    keys = dict(zip((member.pair for member in members), classes, strict=True))
    artifacts: dict[Key, BuildArtifact] = {}
    with _alone([member.job for member in members if member.job], display):
        ready, ends = _run(members, display, heavy or heavy_at_once(), slots)
        packed = {each.member.pair: _packed(each, workspace) for each in ready}
    for end in ends:
        for offer in classes[keys[end.member.pair]]:
            key = (end.member.pair.recipe, offer.identity)
            made = _failed(end, workspace) or packed[end.member.pair]
            if isinstance(made, AttemptFailure):
                failures[key] = made
            else:
                artifacts[key] = made
    return PreparedArtifacts(artifacts, failures, workspace)


@contextmanager
def _alone(jobs: Sequence[Job], display: console.TaskDisplay) -> Iterator[None]:
    """Waits for other nights that prepare the same, in the same order as they do."""
    with ExitStack() as locks:
        with lazy_task(display, "wait", "the other night has prepared it") as tell:
            for job in sorted(jobs, key=lambda job: job.state):
                locks.enter_context(job.state_lock(tell))
                job.workspace.sweep(job.state)
        yield


def _unknown(
    offers_by_recipe: Mapping[str, Sequence[AvailableDevice]],
) -> dict[Key, AttemptFailure]:
    """The pairs of devices that never said what they are."""
    return {
        (label, offer.identity): AttemptFailure(
            kind=DeviceError.kind,
            exit_code=DeviceError.exit_code,
            message=offer.problem or "the device does not say what it is",
            place=offer.name,
            remedy=offer.remedy or None,
        )
        for label, offers in offers_by_recipe.items()
        for offer in offers
        if not offer.facts.target
    }


def make_member(
    label: str,
    loaded: LoadedRecipe,
    offer: AvailableDevice,
    output: Path,
    workspace: Workspace,
    archive: Path | None = None,
) -> Member:
    """A recipe for the class of an offered device, which need not be connected here."""
    device = PlaceholderDevice(offer)
    pair = RecipeDevicePair(label, device.name)
    app = AppOptions(archive) if DeviceClass.of(offer).needs_app else None
    there = ConnectedDevice(device, offer.facts, device.identity)
    try:
        job = make_job(loaded, workspace, output, there, None, False, app)
    except EtdeployError as error:
        return Member(pair, loaded, error=error)
    # Labels tell recipes apart that are of one file.
    return Member(pair, loaded, replace(job, variant=f"farm {label}"))


def _run(
    members: Sequence[Member], display: console.TaskDisplay, heavy: int, slots: Slots | None
) -> tuple[list[Ready], list[JobEnd]]:
    """Those that may have a bundle now, and how every one ended."""
    ready, refused = look_up(members)
    # As a measurement is refused: a recipe that cannot be measured need not be exported.
    refused += refused_of(ready, StepName.BENCH)
    out = {end.member.pair for end in refused}
    ready = [each for each in ready if each.member.pair not in out]
    ends = run_jobs(ready, StepName.BUNDLE, display, heavy=heavy, slots=slots)
    well = {end.member.pair for end in ends if end.error is None}
    return [each for each in ready if each.member.pair in well], [*refused, *ends]


def _packed(ready: Ready, workspace: Workspace) -> BuildArtifact | AttemptFailure:
    from etdeploy.bench.measure import revision_of
    from etdeploy.farm.work.artifact import pack

    job: Job = ready.resolved.job
    try:
        return pack(
            prepared(job),
            ready.member.pair.recipe,
            ready.resolved.export_spec.soc,
            # Of what the author wrote, at the time of the export.
            revision_of(job.original_recipe.path),
            workspace,
            app=job.app is not None,
        )
    except Interrupted:
        raise
    except Exception as error:
        return failure_of(error, workspace.root)


def _failed(end: JobEnd, workspace: Workspace) -> AttemptFailure | None:
    if end.error is None:
        return None
    if isinstance(end.error, Interrupted):
        raise end.error
    return failure_of(end.error, workspace.root)


class DeviceClass(NamedTuple):
    """What of a device decides what goes to it: equal for devices that share an artifact."""

    target: str
    soc: str | None
    launches: tuple[str, ...]
    is_here: bool

    @classmethod
    def of(cls, offer: AvailableDevice) -> DeviceClass:
        """That of a device that is offered."""
        can = offer.capabilities
        return cls(offer.facts.target, offer.facts.soc, can.launches, can.is_here)

    @property
    def label(self) -> str:
        """For people, and the same every night: the folder of its state has this name."""
        own = " here" if self.is_here else ""
        apps = "" if "process" in self.launches else " apps"
        return f"{self.target}{f' {self.soc}' if self.soc else ''}{own}{apps}"

    @property
    def needs_app(self) -> bool:
        """Whether only apps can be started there."""
        return "app" in self.launches and "process" not in self.launches


class PlaceholderDevice:
    """Obeys the Device protocol up to what needs the device itself."""

    def __init__(self, offer: AvailableDevice) -> None:
        self._offer = offer
        self._label = DeviceClass.of(offer).label

    @property
    def name(self) -> str:
        return self._label

    @property
    def identity(self) -> str:
        return self._label

    @property
    def capabilities(self) -> Capabilities:
        return self._offer.capabilities

    def facts(self) -> DeviceFacts:
        return self._offer.facts

    def state(self) -> DeviceState:
        self._refuse()

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:  # noqa: ARG002
        self._refuse()

    def end_leftovers(self) -> tuple[Leftover, ...]:
        self._refuse()

    def open_run(
        self,
        bundle: Bundle,  # noqa: ARG002
        run_id: str,  # noqa: ARG002
    ) -> AbstractContextManager[RunFolder]:
        self._refuse()

    def clean(self) -> Mapping[str, int]:
        self._refuse()

    def close(self) -> None:
        """Nothing is held open."""

    def _refuse(self) -> NoReturn:
        raise RuntimeError(f"{self._label} stands for devices that are not here")
