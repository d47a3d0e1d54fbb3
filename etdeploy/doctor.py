"""Checks of this machine: Python, packages, tools, SDKs and disk space."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from etdeploy.apps.android.tools import tool_findings
from etdeploy.backends.registry import built_in_backends, plugged_findings
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import prepare_cache
from etdeploy.cache.workspace import Workspace
from etdeploy.core import console
from etdeploy.core.commands import pip_command, system_command
from etdeploy.core.errors import Blocker, BuildError, EtdeployError
from etdeploy.core.processes import process
from etdeploy.core.values import DoctorCheck
from etdeploy.devices.ios import command
from etdeploy.export.needs import LLM_PACKAGES, TIMM_PACKAGES
from etdeploy.export.spec import TESTED_VERSIONS
from etdeploy.provider.checkout import SOURCE_VARIABLE, find_checkout
from etdeploy.provider.wheel import executorch_version
from etdeploy.runner.toolchains import find_zig, probe_tools
from etdeploy.targets.ndk import Ndk, find_ndk
from etdeploy.targets.platforms import Target, find_emulator, find_target, host_target

_NEEDED_FREE_BYTES = 2_000_000_000


def examine() -> tuple[DoctorCheck, ...]:
    """Checks Python, packages, tools, SDKs and disk space."""
    host = host_target()
    return (
        _python(),
        *(_package(name, version) for name, version in TESTED_VERSIONS.items()),
        *_loaders(),
        *_tools(host),
        _program("git", "the recipe's revision in run records", system_command("git")),
        _program(
            "adb", "Android devices over USB while an adb server is running", system_command("adb")
        ),
        _program("ssh", "boards: --device ssh:HOST", system_command("openssh-client")),
        _iphones(),
        _qemu(host),
        _sources(),
        _ndk(),
        _zig(),
        *(finding for b in built_in_backends() for finding in b.findings(Workstation.this())),
        *plugged_findings(Workstation.this()),
        *tool_findings(Workstation.this()),
        *_xcode(),
        _disk(),
    )


def _python() -> DoctorCheck:
    version = platform.python_version()
    fits = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return DoctorCheck(
        name="Python",
        state="ok" if fits else "missing",
        found=version,
        needed_for="everything",
        remedy=None if fits else "Use Python 3.10 to 3.13.",
    )


def _package(name: str, tested: str) -> DoctorCheck:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return DoctorCheck(
            name=name,
            state="missing",
            found=None,
            needed_for="exporting models",
            remedy=pip_command("etdeploy[export]"),
        )
    if found.split("+")[0] == tested:
        return DoctorCheck(name=name, state="ok", found=found, needed_for="exporting models")
    return DoctorCheck(
        name=name,
        state="optional",
        found=f"{found} (tested: {tested})",
        needed_for="exporting models",
        remedy=f"pip install {name}=={tested}",
    )


def _loaders() -> Iterator[DoctorCheck]:
    """The packages of the extras that load models of the hub or a folder."""
    named = "recipes with model.hf or model.gguf, generate and chat"
    yield _extra("language models", "llm", LLM_PACKAGES, named)
    yield _extra("models of timm", "timm", TIMM_PACKAGES, "recipes with model.timm")


def _extra(name: str, extra: str, packages: tuple[str, ...], needed_for: str) -> DoctorCheck:
    found: dict[str, str] = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    complete = len(found) == len(packages)
    return DoctorCheck(
        name=name,
        state="ok" if complete else "optional",
        found=", ".join(f"{package} {version}" for package, version in found.items()) or None,
        needed_for=needed_for,
        remedy=None if complete else pip_command(f"etdeploy[{extra}]"),
    )


def _tools(host: Target) -> Iterator[DoctorCheck]:
    cross = find_target("linux-aarch64")
    seen: set[str] = set()
    for target, required in ((host, True), (cross, False)):
        for tool in probe_tools(target, host):
            if tool.name in seen:
                continue
            seen.add(tool.name)
            missing: Literal["missing", "optional"] = (
                "missing" if required and tool.required else "optional"
            )
            yield DoctorCheck(
                name=tool.name,
                state="ok" if tool.path else missing,
                found=tool.version or (str(tool.path) if tool.path else None),
                needed_for=tool.needed_for,
                remedy=tool.remedy,
            )


def _program(name: str, needed_for: str, remedy: str) -> DoctorCheck:
    path = process.which(name)
    return DoctorCheck(
        name=name,
        state="ok" if path else "optional",
        found=str(path) if path else None,
        needed_for=needed_for,
        remedy=remedy,
    )


def _iphones() -> DoctorCheck:
    path = command.find_program()
    return DoctorCheck(
        name=command.PROGRAM,
        state="ok" if path else "optional",
        found=str(path) if path else None,
        needed_for="iPhones: --device ios",
        remedy=None if path else command.install_command(),
    )


def _qemu(host: Target) -> DoctorCheck:
    needed = "device qemu: arm64 runners on this machine"
    path = find_emulator("aarch64")
    if host.system != "linux":
        return DoctorCheck(
            name="qemu-user",
            state="optional",
            found=None,
            needed_for=needed,
            remedy="qemu's user mode runs on Linux only.",
        )
    return DoctorCheck(
        name="qemu-user",
        state="ok" if path else "optional",
        found=str(path) if path else None,
        needed_for=needed,
        remedy=system_command("qemu-user-static"),
    )


def _ndk() -> DoctorCheck:
    found = find_ndk(os.environ, Path.home())
    usable = isinstance(found, Ndk)
    return DoctorCheck(
        name="Android NDK",
        state="ok" if usable else "optional",
        found=f"{found.release} in {found.path}" if isinstance(found, Ndk) else None,
        needed_for="builds of ExecuTorch for Android (the portable runner does not need it)",
        remedy=None if isinstance(found, Ndk) else f"{found.why}\n{found.remedy}",
    )


def _sources() -> DoctorCheck:
    try:
        found = find_checkout(None, os.environ, Workspace.default(), executorch_version())
    except BuildError as error:
        return DoctorCheck(
            name="ExecuTorch sources",
            state="optional",
            found=None,
            needed_for="the provider source",
            remedy=f"{error.message}\n{error.remedy}",
        )
    return DoctorCheck(
        name="ExecuTorch sources",
        state="ok" if found else "optional",
        found=f"{found.version} in {found.path}" if found else None,
        needed_for="the provider source",
        remedy=None
        if found
        else f"A run clones them if needed. Or:\nexport {SOURCE_VARIABLE}=/path/to/checkout",
    )


def _zig() -> DoctorCheck:
    found = find_zig()
    lacks = isinstance(found, Blocker)
    return DoctorCheck(
        name="zig",
        state="optional" if lacks else "ok",
        found=None if isinstance(found, Blocker) else found.version,
        needed_for="static runners for any 64-bit Arm Linux (target linux-aarch64-musl)",
        remedy=found.remedy if isinstance(found, Blocker) else None,
    )


def _xcode() -> tuple[DoctorCheck, ...]:
    if platform.system() != "Darwin":
        return ()
    return (
        _program(
            "xcodebuild", "building iOS apps: etdeploy app ios --build", "xcode-select --install"
        ),
    )


def _disk() -> DoctorCheck:
    folder = Workspace.default().root
    try:
        prepare_cache(folder)
    except EtdeployError as error:
        return DoctorCheck(
            name="cache",
            state="missing",
            found=None,
            needed_for="all results",
            remedy=f"{error.place}: {error.message}\n{error.remedy}",
        )
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free_bytes = shutil.disk_usage(existing).free
    enough = free_bytes >= _NEEDED_FREE_BYTES
    return DoctorCheck(
        name="disk space",
        state="ok" if enough else "missing",
        found=f"{console.size(free_bytes)} free",
        needed_for=f"the cache in {folder}",
        remedy="etdeploy clean all   or   export ETDEPLOY_CACHE_DIR=/path/on/a/larger/disk",
    )
