"""Asks Vulkan on this machine for a device, in a process of its own, since it loads GPU drivers.

    python -I -S vulkan_query.py

Ends with 0 if there is a device. Otherwise it ends with 1, and the last line on stderr says why, in
the words of templates/runner/availability.h, which asks the same on other devices. It imports
nothing of etdeploy.
"""

from __future__ import annotations

import ctypes
import sys

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
