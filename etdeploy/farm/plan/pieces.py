"""What a night exports and builds, each thing once; nothing is made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError
from etdeploy.farm.model import Offer
from etdeploy.farm.plan.model import Piece, Refused
from etdeploy.farm.work.prepare import classes_of, member_of
from etdeploy.graph.many.run import look_up, refused_of
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.sharing import expected_runner, export_work
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import find_target


@dataclass(frozen=True)
class Looked:
    """A recipe for a class of devices, with what was looked up for it."""

    recipe: str
    shown: str
    resolved: Resolved


def look_up_classes(
    wanted: Mapping[str, Sequence[Offer]],
    recipes: Mapping[str, LoadedRecipe],
    workspace: Workspace,
    output: Path,
    apps: Mapping[str, Path],
) -> tuple[list[Looked], list[Refused]]:
    """Looks up what each recipe needs for each class of its devices, and what speaks against it.

    Just what a night looks up and refuses before it makes anything.

    Args:
        wanted: The devices of each recipe, by its label.
        recipes: By label.
        workspace: The cache.
        output: The folder for results.
        apps: Apps that are built already, by label.
    """
    classes = classes_of(wanted)
    members = [
        member_of(label, recipes[label], offers[0], output, workspace, apps.get(label))
        for (label, _), offers in classes.items()
    ]
    devices = dict(zip((member.pair for member in members), classes.values(), strict=True))
    ready, refused = look_up(members)
    refused += refused_of(ready)
    out = {end.member.pair for end in refused}
    return (
        [
            Looked(each.member.pair.recipe, each.member.pair.device, each.resolved)
            for each in ready
            if each.member.pair not in out
        ],
        [_refused(end.member.pair.recipe, devices[end.member.pair], end.error) for end in refused],
    )


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
    if resolved.job.app is None or resolved.job.app.given is None:
        yield "build", f"{expected_runner(resolved)} {_app_of(resolved)}", _is_built(resolved)


def _app_of(resolved: Resolved) -> str:
    """An app carries its program, so each has its own."""
    return export_work(resolved) if resolved.job.app else ""


def _is_built(resolved: Resolved) -> bool | None:
    """Whether the cache has the runner; None where only the export can tell, and for apps."""
    from etdeploy.provider.libraries import Libraries
    from etdeploy.provider.wheel import known_wheel
    from etdeploy.runner.build import runner_key

    job, plan, checkout = resolved.job, resolved.plan, resolved.checkout
    if plan.provisional or job.app:
        return None
    wheel = None
    if resolved.sources is None:
        wheel = known_wheel(find_target(plan.build_target), job.host, job.workspace)
    if checkout is None and wheel is None:
        return False
    key = runner_key(plan, Libraries(checkout=checkout, wheel=wheel), job.host, _names(resolved))
    return job.workspace.entry(CacheKind.RUNNERS, key).is_sound()


def _names(resolved: Resolved) -> tuple[str, ...]:
    """The operators that are searched for in a runner with the recipe's own kernels."""
    from etdeploy.custom_ops.kernels import names_to_find

    finished = resolved.job.loaded.recipe.model.program
    program = resolved.exported.path if resolved.exported else finished and Path(finished)
    return names_to_find(resolved.custom_ops, program or None)


def _refused(label: str, offers: Sequence[Offer], error: Exception | None) -> Refused:
    told = error if isinstance(error, EtdeployError) else None
    return Refused(
        recipe=label,
        devices=tuple(offer.name for offer in offers),
        reason=told.message if told else str(error),
        remedy=told.remedy if told else None,
    )
