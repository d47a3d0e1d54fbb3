"""What a night exports and builds, each thing once; nothing is made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.farm.model import Offer
from etdeploy.farm.plan.model import Piece, Refused
from etdeploy.graph.job import AppWish, make_job
from etdeploy.graph.lookups import Lookups
from etdeploy.graph.preflight import refuse_early
from etdeploy.graph.resolve import Resolved, resolve
from etdeploy.graph.sharing import expected_runner, export_work
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import TARGETS, find_target

# A recipe's label with a device that stands for all of its class.
Wanted = tuple[str, Offer]


@dataclass(frozen=True)
class Looked:
    """A recipe for a class of devices, with what was looked up for it."""

    recipe: str
    shown: str
    resolved: Resolved


def class_of(offer: Offer) -> tuple[str, str | None, bool]:
    """Equal for devices that what was made for one of them is for: target, SoC, whether an app."""
    return offer.facts.target, offer.facts.soc, _by_app(offer)


def look_up(
    wanted: Mapping[str, Sequence[Offer]],
    recipes: Mapping[str, LoadedRecipe],
    workspace: Workspace,
    output: Path,
) -> tuple[list[Looked], list[Refused]]:
    """Looks up what each recipe needs for each class of its devices, and what speaks against it.

    Args:
        wanted: The devices of each recipe, by its label.
        recipes: By label.
        workspace: The cache.
        output: The folder for results.
    """
    lookups = Lookups()
    looked, refused = [], []
    for label, offers in wanted.items():
        classes: dict[tuple[str, str | None, bool], list[Offer]] = {}
        for offer in offers:
            classes.setdefault(class_of(offer), []).append(offer)
        for alike in classes.values():
            try:
                resolved = _resolved(recipes[label], alike[0], workspace, output, lookups)
                refuse_early(resolved)
            except EtdeployError as error:
                refused.append(_refused(label, alike, error))
            else:
                looked.append(Looked(label, _shown(alike[0]), resolved))
    return looked, refused


def _resolved(
    loaded: LoadedRecipe, offer: Offer, workspace: Workspace, output: Path, lookups: Lookups
) -> Resolved:
    """Everything that is known of the work for a class of devices.

    Raises:
        EtdeployError: The recipe does not fit such a device or this machine.
    """
    if offer.facts.target not in TARGETS:
        raise UsageError(f"nothing is built for {offer.facts.target or 'such a device'}")
    wish = AppWish() if _by_app(offer) else None
    # Without a device: it may be on another host, and need not be asked anything for this.
    job = make_job(loaded, workspace, output, None, find_target(offer.facts.target), True, wish)
    return resolve(replace(job, facts=offer.facts), lookups)


def pieces_of(looked: Iterable[Looked]) -> tuple[Piece, ...]:
    """Each program and each runner once, with those whom it is for."""
    found: dict[tuple[str, str], list[tuple[Looked, bool | None]]] = {}
    for each in looked:
        for step, work, cached in _work(each.resolved):
            found.setdefault((step, work), []).append((each, cached))
    return tuple(
        Piece(
            step="export" if step == "export" else "build",
            recipes=tuple(dict.fromkeys(each.recipe for each, _ in users)),
            classes=tuple(dict.fromkeys(each.shown for each, _ in users)),
            cached=users[0][1],
        )
        for step in ("export", "build")
        for (kind, _), users in found.items()
        if kind == step
    )


def _work(resolved: Resolved) -> Iterator[tuple[str, str, bool | None]]:
    if not resolved.job.loaded.recipe.model.program:
        yield "export", export_work(resolved), resolved.exported is not None
    yield "build", f"{expected_runner(resolved)} {_app_of(resolved)}", _is_built(resolved)


def _app_of(resolved: Resolved) -> str:
    """An app carries its program, so each has its own."""
    return export_work(resolved) if resolved.job.app else ""


def _is_built(resolved: Resolved) -> bool | None:
    """Whether the cache has the runner; None where only the export can tell, and for apps."""
    from etdeploy.provider.libraries import Libraries
    from etdeploy.provider.wheel import find_installed
    from etdeploy.runner.build import runner_key

    if resolved.plan.provisional or resolved.job.app:
        return None
    checkout = resolved.checkout
    wheel = None if resolved.sources else find_installed(find_target(resolved.plan.build_target))
    if checkout is None and wheel is None:
        return False
    libraries = Libraries(checkout=checkout) if checkout else Libraries(wheel=wheel)
    key = runner_key(resolved.plan, libraries, resolved.job.host)
    return resolved.job.workspace.entry(CacheKind.RUNNERS, key).is_sound()


def _by_app(offer: Offer) -> bool:
    launches = offer.capabilities.launches
    return "process" not in launches and "app" in launches


def _shown(offer: Offer) -> str:
    words = [offer.facts.target, offer.facts.soc, "app" if _by_app(offer) else None]
    return " ".join(word for word in words if word)


def _refused(label: str, offers: Sequence[Offer], error: EtdeployError) -> Refused:
    return Refused(
        recipe=label,
        devices=tuple(offer.name for offer in offers),
        reason=error.message,
        remedy=error.remedy,
    )
