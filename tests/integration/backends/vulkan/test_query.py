"""Vulkan on this machine is asked for a device, whatever drivers there are."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etdeploy.backends import vulkan_query

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="Vulkan's library has another name"),
]


def _asked(**environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", vulkan_query.__file__],
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr.strip()


def test_no_driver_is_told() -> None:
    said = _asked(VK_ICD_FILENAMES="/none.json", VK_DRIVER_FILES="/none.json")
    if _has_library():
        assert said == "vkCreateInstance gives VK_ERROR_INCOMPATIBLE_DRIVER"
    else:
        assert said.startswith("libvulkan.so.1: cannot open shared object file")


def test_a_device_is_found_with_mesas_driver_for_the_processor() -> None:
    driver = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"
    if not _has_library() or not Path(driver).exists():
        pytest.skip("mesa-vulkan-drivers is not installed")
    assert _asked(VK_ICD_FILENAMES=driver) == ""


def _has_library() -> bool:
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return False
    return True
