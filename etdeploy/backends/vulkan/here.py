"""Whether this machine has a Vulkan driver, asked before minutes are spent on a build."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from etdeploy.backends.names import OTHER_BACKEND, OTHER_PROGRAM
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
    argv = (sys.executable, "-I", "-S", str(__file__))
    outcome = process.run(process.Request(argv, timeout_s=_TIMEOUT_S))
    said = outcome.stderr.splitlines()
    return said[-1] if outcome.exit_code == 1 and said else None


_ERRORS = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
}


class _InstanceCreateInfo(ctypes.Structure):
    """VkInstanceCreateInfo of vulkan_core.h."""

    _fields_ = (
        ("structure_type", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.c_void_p),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    )


def problem() -> str:
    """Why there is no device; empty if there is one."""
    try:
        library = ctypes.CDLL("libvulkan.so.1")
    except OSError as error:
        return str(error)
    # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO is 1.
    info, instance = _InstanceCreateInfo(1), ctypes.c_void_p()
    result = library.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if result != 0:
        return _said("vkCreateInstance", result)
    devices = ctypes.c_uint32()
    result = library.vkEnumeratePhysicalDevices(instance, ctypes.byref(devices), None)
    if result != 0:
        return _said("vkEnumeratePhysicalDevices", result)
    return "" if devices.value else "no driver has a device"


def _said(function: str, result: int) -> str:
    return f"{function} gives {_ERRORS.get(result, f'VkResult {result}')}"


if __name__ == "__main__":
    sys.exit(problem() or None)
