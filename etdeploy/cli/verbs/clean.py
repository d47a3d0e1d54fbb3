"""etdeploy clean."""

from __future__ import annotations

import click

from etdeploy.cache.folder import LIMIT_VARIABLE, CacheKind, limit_bytes, require_ours
from etdeploy.cache.tidy import (
    UNUSED_DAYS,
    CacheRemoval,
    Unit,
    alone,
    find_units,
    remove_kind,
    remove_units,
    unused_units,
)
from etdeploy.cache.workspace import Workspace
from etdeploy.cli.options import complete_device, options
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError

# The parts, and what it costs to get them back.
PARTS: dict[CacheKind, str] = {
    CacheKind.PROGRAMS: "exported programs; exported again",
    CacheKind.RUNNERS: "built runners; built again in seconds",
    CacheKind.BUILDS: "ExecuTorch compiled from source, by target, and environments of "
    "upgrade-check; made again in minutes",
    CacheKind.SOURCES: "clones of ExecuTorch; cloned again",
    CacheKind.ZIG: "zig's compiler cache; compiled again",
    CacheKind.KITS: "libraries of device makers, unpacked or linked; unpacked again",
    CacheKind.WHEELS: "ExecuTorch libraries for other platforms; fetched again",
    CacheKind.STATE: "state and logs of the steps; every step checks the cache again",
    CacheKind.BUNDLES: "files copied for host and qemu; copied again",
    CacheKind.PARCELS: "programs and runners of farm nights, as links where possible; linked again",
    CacheKind.FETCHED: "files that another host of a farm sent; sent again",
    CacheKind.TRACES: "traces of runs that `etdeploy profile` has read; read again in seconds",
    CacheKind.REFERENCES: "texts and logits of language models before quantization; computed again",
    CacheKind.LOGS: "bug reports",
}


@click.command()
@click.argument(
    "parts", nargs=-1, metavar="[PART]...", type=click.Choice([*map(str, PARTS), "all"])
)
@click.option(
    "--unused",
    is_flag=True,
    help=f"Delete what was not used for {UNUSED_DAYS} days, and programs, runners and wheels that "
    "no recipe's last run used. With PARTs, only from these.",
)
@click.option(
    "-d",
    "--device",
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Also delete what etdeploy left on this device.",
)
@options("json")
def clean(parts: tuple[str, ...], unused: bool, device: str | None, as_json: bool) -> None:
    """Show what is in the cache, delete PARTs of it, or what is unused.

    Without arguments, the PARTs are listed with their sizes; `all` stands for every one. What a run
    is using is kept. Run records in etdeploy-out/ are never deleted.
    """
    workspace = Workspace.default()
    require_ours(workspace.root)
    limit = limit_bytes()
    everything = "all" in parts or (unused and not parts)
    named = tuple(PARTS) if everything else tuple(CacheKind(part) for part in parts)
    before = workspace.size_bytes()
    old = unused_units(workspace, find_units(workspace)) if workspace.root.is_dir() else []
    removals = _remove(workspace, named, old if unused else None)
    freed: dict[str, int] = {
        part: sum(r.freed_bytes.get(part, 0) for r in removals) for part in named
    }
    kept = [f"{unit.kind} {unit.name}".strip() for r in removals for unit in r.kept]
    if device:
        freed.update(_clean_device(device, workspace, kept))
    if as_json:
        console.result_json(
            {
                "cache": str(workspace.root),
                "limit_bytes": limit,
                "size_bytes": before,
                "unused_bytes": _by_part(old),
                "freed_bytes": freed,
                "kept": kept,
            }
        )
    elif named or device:
        rows = [(part, console.size(size)) for part, size in freed.items()]
        console.result(
            console.table(("deleted", "freed"), rows, right=("freed",), width=console.width())
        )
    else:
        _show(workspace, limit, before, _by_part(old))
    if kept and not as_json:
        console.message(f"\nkept, because a run is or may be using it: {', '.join(kept)}")


def _remove(
    workspace: Workspace, parts: tuple[CacheKind, ...], units: list[Unit] | None
) -> list[CacheRemoval]:
    """Remove the parts, or only these units of them."""
    try:
        if units is None:
            return [remove_kind(workspace, part) for part in parts]
        return [remove_units(workspace, [unit for unit in units if unit.kind in parts])]
    except OSError as error:
        raise UsageError(
            f"cannot delete: {error.strerror or error}",
            place=str(error.filename or workspace.root),
            remedy=f"Check who owns it: ls -la {quoted(workspace.root)}",
        ) from error


def _by_part(units: list[Unit]) -> dict[str, int]:
    return {part: sum(u.size_bytes for u in units if u.kind == part) for part in PARTS}


def _show(
    workspace: Workspace, limit: int | None, sizes: dict[str, int], unused: dict[str, int]
) -> None:
    rows = [
        (str(part), console.size(sizes.get(part, 0)), console.size(unused[part]), text)
        for part, text in PARTS.items()
    ]
    total, total_unused = (
        console.size(sum(held.get(part, 0) for part in PARTS)) for held in (sizes, unused)
    )
    rows.append(("all", total, total_unused, ""))
    bound = f"at most {console.size(limit)}" if limit else "unlimited"
    console.result(f"cache: {workspace.root}, {bound} ({LIMIT_VARIABLE})\n")
    columns = ("part", "size", "unused", "what it is")
    console.result(console.table(columns, rows, right=("size", "unused"), width=console.width()))
    console.message(
        "\nDelete with:  etdeploy clean --unused,  etdeploy clean PART...  or  etdeploy clean all"
    )


def _clean_device(name: str, workspace: Workspace, kept: list[str]) -> dict[str, int]:
    """Return the bytes freed by folder; add the device to `kept` if a run may be using it."""
    from etdeploy.core.files.locks import exclusive
    from etdeploy.devices.base import lock_name
    from etdeploy.devices.registry import open_device

    opened = open_device(name, workspace)
    try:
        # A run releases the device between its push and its measurement.
        with alone(workspace) as free:
            if not free:
                kept.append(f"device {opened.name}")
                return {}
            with exclusive(
                workspace.lock_path("device", lock_name(opened)), f"device {opened.name}"
            ):
                return {f"{opened.name} {part}": size for part, size in opened.clean().items()}
    finally:
        opened.close()
