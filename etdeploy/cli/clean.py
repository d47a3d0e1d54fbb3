"""etdeploy clean."""

from __future__ import annotations

import click

from etdeploy.cli.options import json_option
from etdeploy.core import console
from etdeploy.core.cache_folder import require_ours
from etdeploy.core.workspace import Workspace

# What can be deleted, and what it costs to have it again.
PARTS: dict[str, str] = {
    "programs": "exported programs; made again by export",
    "runners": "built runners; built again in seconds",
    "builds": "ExecuTorch compiled from source, by target; takes minutes again",
    "sources": "clones of ExecuTorch; fetched again",
    "zig": "what zig compiled",
    "wheels": "ExecuTorch libraries of other platforms; fetched again",
    "state": "which steps are done, logs; every step looks at the cache again",
    "bundles": "what was laid out for host and qemu; copied again",
    "logs": "reports of bugs",
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, "all"]))
@click.option("-d", "--device", metavar="DEVICE", help="Also remove what etdeploy left there.")
@json_option
def command(parts: tuple[str, ...], device: str | None, as_json: bool) -> None:
    """Show what the cache holds; delete the PARTS that are named.

    Run records in etdeploy-out/ are never touched.
    """
    workspace = Workspace.default()
    require_ours(workspace.root)
    chosen = tuple(PARTS) if "all" in parts else parts
    sizes = workspace.size_bytes()
    freed = {part: sizes.get(part, 0) for part in chosen}
    for part in chosen:
        workspace.remove(part)
    if device:
        freed.update(_clean_device(device, workspace))
    if as_json:
        console.result_json(
            {
                "cache": str(workspace.root),
                "size_bytes": sizes,
                "freed_bytes": freed,
            }
        )
    elif freed:
        rows = [(part, console.size(size)) for part, size in freed.items()]
        console.result(console.table(("deleted", "freed"), rows, right=("freed",)))
    else:
        _show(workspace, sizes)


def _show(workspace: Workspace, sizes: dict[str, int]) -> None:
    rows = [(part, console.size(sizes.get(part, 0)), text) for part, text in PARTS.items()]
    console.result(f"cache: {workspace.root}\n")
    console.result(console.table(("part", "size", "what it is"), rows, right=("size",)))
    console.message("\nDelete with:  etdeploy clean PART...   or   etdeploy clean all")


def _clean_device(name: str, workspace: Workspace) -> dict[str, int]:
    from etdeploy.core.locks import exclusive
    from etdeploy.devices.registry import open_device

    opened = open_device(name, workspace)
    try:
        with exclusive(workspace.lock_path("device", opened.identity), f"device {opened.name}"):
            return {f"{opened.name} {part}": size for part, size in opened.clean().items()}
    finally:
        opened.close()
