"""Toolchains of this machine, and digests that detect changes of what a build uses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import folder_files, resource_folder
from etdeploy.core.hashing import code_digest, digest_json, sha256_file
from etdeploy.plan.components import linked_backends
from etdeploy.plan.model import RuntimePlan
from etdeploy.plan.requirements import MUSL
from etdeploy.provider.checkout import Checkout
from etdeploy.runner.toolchains import Machine, Toolchain, find_toolchain
from etdeploy.targets import ndk
from etdeploy.targets.platforms import Target, emulator_identity

# A level that every NDK has, used to look for the compiler alone.
_LEAST_ANDROID_API = 28
# Environment variables that cmake reads into a build.
_FLAGS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
# The parts of etdeploy that decide what a plan says and what a runner consists of.
_DECIDING = ("backends", "custom_ops", "plan", "program", "provider", "recipe", "runner", "targets")


def runner_sources() -> Path:
    """The folder of the runner's CMake project."""
    return resource_folder("templates") / "runner"


def rules_digest() -> str:
    """A digest of the etdeploy code that decides; other releases may decide differently."""
    return code_digest(*_DECIDING)


def toolchain_for(
    plan: RuntimePlan,
    target: Target,
    host: Target,
    checkout: Checkout | None,
    *,
    for_app: bool = False,
) -> Toolchain | Blocker:
    """The toolchain of a build from source on this machine, or why there is none.

    An app cannot have the static runner that a remedy names.
    """
    api = plan.option("ANDROID_PLATFORM")
    found = find_toolchain(
        target,
        Machine.this(host, os.environ),
        int(api.removeprefix("android-")) if api else _LEAST_ANDROID_API,
        checkout.folder if checkout else None,
    )
    if isinstance(found, Blocker):
        around = found.what == ndk.NAME and not for_app
        other = _without_ndk(plan, target) if around else ""
        remedy = f"{found.remedy}{other}"
        return replace(found, what="toolchain", why=f"{found.what}: {found.why}", remedy=remedy)
    return found


def _without_ndk(plan: RuntimePlan, target: Target) -> str:
    """The way around the NDK; a static runner cannot load the libraries of a device's maker."""
    if target.system != "android" or target.arch != "aarch64":
        return ""
    loading = [backend for backend in linked_backends(plan) if backend.loads]
    if not loading:
        return f"\nor use the static runner, which needs no NDK: --target {MUSL}"
    if plan.custom_ops is None and all(backend.aar for backend in loading):
        return (
            "\nor run it in the sample app, which needs an Android SDK, but neither an NDK nor a "
            "build of\nExecuTorch: etdeploy run --as app --device android"
        )
    return ""


def runner_fingerprint(host: Target, build_target: Target | None = None) -> str:
    """A digest of the runner's sources, the toolchain file, the compiler, and the emulator.

    No process is started: a compiler is identified by its path, size and date, and by the flags in
    the environment.
    """
    return digest_json(
        {
            "sources": _digests(runner_sources()),
            "toolchain": compiler_digest(host, build_target or host),
            "lister": _lister(host, build_target or host),
        }
    )


def _lister(host: Target, target: Target) -> tuple[str, ...] | None:
    """The emulator that starts a runner for another processor, to list its kernels."""
    if target.name == host.name or target.system != "linux":
        return None
    return emulator_identity(target.arch)


def compiler_digest(host: Target, target: Target) -> str:
    """A digest of the compiler, the toolchain files and the flags in the environment."""
    return digest_json(
        {
            "toolchains": _digests(resource_folder("toolchains")),
            "compiler": _compiler_identity(host, target),
            "flags": {name: os.environ.get(name) for name in _FLAGS},
        }
    )


def _compiler_identity(host: Target, target: Target) -> tuple[str, ...] | None:
    """None without a compiler, or if finding it requires a checkout (Apple's)."""
    machine = Machine.this(host, os.environ)
    found = find_toolchain(target, machine, _LEAST_ANDROID_API, None)
    return found.identity if isinstance(found, Toolchain) else None


def _digests(folder: Path) -> dict[str, str]:
    return {name: sha256_file(folder / name) for name in folder_files(folder)}
