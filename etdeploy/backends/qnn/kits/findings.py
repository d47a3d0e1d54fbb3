"""What `etdeploy doctor` shows of QNN: what compiles here, and what goes to phones."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from etdeploy.backends.qnn.kits.compile import CompileKit, compile_problem, find_compile_kit
from etdeploy.backends.qnn.kits.loading import loading_problem
from etdeploy.backends.qnn.kits.sdk import QnnSdk, find_sdk
from etdeploy.backends.qnn.versions import PINNED_VERSION
from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker
from etdeploy.core.finding import Finding
from etdeploy.core.processes import process

# What ExecuTorch's guide to this backend asks for, to build the part that exports.
_LEAST_COMPILER = 13


def examine_qnn(station: Workstation) -> tuple[Finding, ...]:
    """Examines what the backend qnn needs: the compiler, and the SDK.

    Args:
        station: This machine.
    """
    sdk = find_sdk(station.environ, station.home)
    kit = find_compile_kit(station)
    if isinstance(kit, Blocker):
        return (_absent("QNN compiler", kit, "exporting for the qnn backend"),)
    return (_loading(kit, station), _sdk_finding(sdk), *_compiler())


def _sdk_finding(sdk: QnnSdk | Blocker) -> Finding:
    if isinstance(sdk, Blocker):
        return _absent("QNN SDK", sdk, "running programs of the qnn backend on phones")
    archs = sdk.htp_archs
    tested = "" if PINNED_VERSION.startswith(sdk.number) else f", ExecuTorch's is {PINNED_VERSION}"
    return Finding(
        name="QNN SDK",
        state="ok",
        found=f"{sdk.number} in {sdk.root} (HTP {archs[0]} to {archs[-1]}{tested})",
        needed_for="running programs of the qnn backend on phones",
    )


def _loading(kit: CompileKit, station: Workstation) -> Finding:
    problem = compile_problem(kit)
    if problem is None and sys.platform == "linux":
        problem = loading_problem(kit, station.environ)
    if problem:
        return _absent("QNN compiler", problem, "exporting for the qnn backend")
    return Finding(
        name="QNN compiler",
        state="ok",
        found=f"QNN {kit.number} of {kit.from_}",
        needed_for="exporting for the qnn backend",
    )


def _absent(name: str, problem: Blocker, needed_for: str) -> Finding:
    return Finding(
        name=name,
        state="optional",
        found=None,
        needed_for=needed_for,
        remedy=f"{problem.why}.\n{problem.remedy}",
    )


def _compiler() -> Iterator[Finding]:
    """g++; the wheel has the part for export already built, so an export runs without it."""
    path = process.which("g++")
    version = _compiler_version(path) if path else None
    if version is None or int(version.split(".")[0]) < _LEAST_COMPILER:
        yield Finding(
            name=f"g++ {_LEAST_COMPILER}",
            state="optional",
            found=version,
            needed_for="building ExecuTorch's exporter for QNN from source (the wheel has it)",
            remedy=f"apt-get install g++-{_LEAST_COMPILER}",
        )


def _compiler_version(path: Path) -> str | None:
    try:
        outcome = process.run(process.Request((str(path), "-dumpfullversion"), timeout_s=20))
    except OSError:
        return None
    text = outcome.stdout.strip()
    return text if outcome.ok and re.fullmatch(r"\d+(\.\d+)*", text) else None
