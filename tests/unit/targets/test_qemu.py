"""The emulator on this machine, and what tells that it is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.devices.local.device import open_qemu
from etdeploy.runner.fingerprint import runner_fingerprint
from etdeploy.targets.platforms import TARGETS, emulator_version, find_emulator


def install(folder: Path, version: str) -> Path:
    program = folder / "qemu-aarch64-static"
    program.unlink(missing_ok=True)
    program.write_text(f"#!/bin/sh\necho 'qemu-aarch64 version {version} (Debian 1:x)'\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.delenv("QEMU_CPU", raising=False)
    return install(folder, "7.2.22")


def test_the_device_says_which_emulator_plays_which_processor(
    qemu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_qemu(tmp_path / "store")
    facts = device.facts()
    assert (facts.emulator, facts.emulated_cpu) == ("qemu-aarch64-static 7.2.22", "max,sve=off")
    monkeypatch.setenv("QEMU_CPU", "cortex-a76")
    assert device.facts().emulated_cpu == "cortex-a76"
    install(qemu.parent, "10.0.2")
    assert device.facts().emulator == "qemu-aarch64-static 10.0.2"


def test_an_emulator_that_tells_no_version(qemu: Path) -> None:
    qemu.write_text("#!/bin/sh\nexit 1\n")
    assert emulator_version(qemu) is None


def test_what_lists_the_kernels_of_a_foreign_runner_is_part_of_its_fingerprint(
    qemu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, foreign = TARGETS["linux-x86_64"], TARGETS["linux-aarch64"]

    def fingerprints() -> tuple[str, str]:
        return runner_fingerprint(host), runner_fingerprint(host, foreign)

    seen = [fingerprints()]
    monkeypatch.setenv("QEMU_CPU", "cortex-a76")
    seen.append(fingerprints())
    install(qemu.parent, "10.0.2")
    seen.append(fingerprints())
    qemu.unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_emulator("aarch64") is None
    assert len({own for own, _ in seen}) == 1
    assert len({other for _, other in seen}) == 3
