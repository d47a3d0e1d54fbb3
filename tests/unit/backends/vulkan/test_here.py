"""A machine without a Vulkan driver is refused before anything is exported or built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.backends.values import Destination, Partitions
from etdeploy.backends.vulkan import VULKAN, vulkan_problem
from etdeploy.targets.platforms import find_target
from tests.support.facts import lacks

_HOST = Destination(find_target("linux-x86_64"), "host", reports=True, is_here=True)
_NO_DRIVER = "echo 'vkCreateInstance gives VK_ERROR_INCOMPATIBLE_DRIVER' >&2; exit 1"


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    vulkan_problem.cache_clear()
    yield
    vulkan_problem.cache_clear()


def _answers(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Stands in for the Python that asks Vulkan."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_no_driver_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(tmp_path, monkeypatch, _NO_DRIVER)
    blocker = VULKAN.device_blocker("auto", _HOST)
    assert blocker is not None
    assert not lacks(blocker.why, "no Vulkan driver", "VK_ERROR_INCOMPATIBLE_DRIVER)")
    assert "mesa-vulkan-drivers" in blocker.remedy
    assert list(VULKAN.program_blockers(Partitions(), _HOST)) == [blocker]
    (of_file,) = VULKAN.program_blockers(Partitions(finished=True), _HOST)
    assert "--set export" in blocker.remedy
    assert "--set export" not in of_file.remedy


@pytest.mark.parametrize("code", ["exit 0", "echo 'a driver crashed' >&2; exit 139"])
def test_a_device_and_a_failed_question_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    _answers(tmp_path, monkeypatch, code)
    assert VULKAN.device_blocker("auto", _HOST) is None


@pytest.mark.parametrize(
    "where",
    [
        Destination(find_target("linux-x86_64"), "linux-x86_64"),
        Destination(find_target("linux-aarch64"), "qemu", reports=True),
        Destination(find_target("android-arm64"), "android:R5CT", reports=True),
    ],
)
def test_other_devices_are_not_judged_by_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Destination
) -> None:
    _answers(tmp_path, monkeypatch, _NO_DRIVER)
    assert VULKAN.device_blocker("auto", where) is None
    assert not list(VULKAN.program_blockers(Partitions(), where))
