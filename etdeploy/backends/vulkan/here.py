"""Whether this machine has a Vulkan driver, asked before minutes are spent on a build."""

from __future__ import annotations

import sys
from functools import cache

from etdeploy.backends.names import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.backends.vulkan import ask
from etdeploy.backends.vulkan.words import driver_remedy, explained
from etdeploy.core.blocker import Blocker
from etdeploy.core.processes import process

_TIMEOUT_S = 20.0


def driver_blocker(*, finished: bool = False) -> Blocker | None:
    """Why Vulkan finds no device here; None if it finds one, or if asking it failed.

    Args:
        finished: Whether the program was given as a file, so that no recipe can change it.
    """
    problem = vulkan_problem()
    if problem is None:
        return None
    return Blocker(
        what="Vulkan driver",
        why=f"Vulkan cannot be used on this machine: {explained(problem)}",
        remedy=f"{driver_remedy('host')}\n{OTHER_PROGRAM if finished else OTHER_BACKEND}",
    )


@cache
def vulkan_problem() -> str | None:
    """What Vulkan says; None if it has a device, or if asking it failed."""
    argv = (sys.executable, "-I", "-S", str(ask.__file__))
    outcome = process.run(process.Request(argv, timeout_s=_TIMEOUT_S))
    said = outcome.stderr.splitlines()
    return said[-1] if outcome.exit_code == 1 and said else None
