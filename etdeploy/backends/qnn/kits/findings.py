"""What `etdeploy doctor` shows of QNN: what compiles here, and what goes to phones."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from etdeploy.backends.qnn.kits.compiler import CompileKit, compile_problem, find_compile_kit
from etdeploy.backends.qnn.kits.deploy import DeployKit, find_deploy_kit
from etdeploy.backends.qnn.kits.loading import loading_problem
from etdeploy.backends.qnn.kits.sdk import QnnSdk, find_headers, headers_problem
from etdeploy.backends.qnn.versions import PINNED_VERSION, is_newer
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.processes import process
from etdeploy.core.values import Finding

# What ExecuTorch's guide to this backend asks for, to build the part that exports.
_LEAST_COMPILER = 13


def examine_qnn(station: Workstation) -> tuple[Finding, ...]:
    """Examines what the backend qnn needs to compile, to deploy and to build.

    Where there is nothing, only the compiler is told of: it comes first for everybody.
    """
    kit, phone = find_compile_kit(station), find_deploy_kit(station)
    headers = headers_problem(station) or find_headers(station)
    compiler = _compiling(kit, station)
    if all(isinstance(found, Blocker) for found in (kit, phone, headers)):
        return (compiler,)
    return (compiler, _deploying(phone, kit), _building(headers), *_compiler())


def _compiling(kit: CompileKit | Blocker, station: Workstation) -> Finding:
    name, needed_for = "QNN compiler", "exporting for the qnn backend, and simulating"
    problem = kit if isinstance(kit, Blocker) else compile_problem(kit)
    if isinstance(kit, Blocker) or problem:
        return _absent(name, problem, needed_for)
    # Elsewhere it cannot be loaded, and an export says so.
    problem = loading_problem(kit, station.environ) if sys.platform == "linux" else None
    if problem:
        return _absent(name, problem, needed_for)
    return Finding(
        name=name, state="ok", found=f"QNN {kit.number} of {kit.from_}", needed_for=needed_for
    )


def _deploying(phone: DeployKit | Blocker, kit: CompileKit | Blocker) -> Finding:
    name, needed_for = "QNN for phones", "running programs of the qnn backend on phones"
    if isinstance(phone, Blocker):
        return _absent(name, phone, needed_for)
    archs = phone.htp_archs
    facts = [f"HTP {archs[0]} to {archs[-1]}" if archs else "libraries for no HTP"]
    if isinstance(kit, CompileKit) and is_newer(kit.version, phone.version):
        facts.append(f"too old for programs of QNN {kit.number}")
    found = f"{phone.number} in {phone.place} ({', '.join(facts)})"
    return Finding(name=name, state="ok", found=found, needed_for=needed_for)


def _building(headers: QnnSdk | Blocker) -> Finding:
    name, needed_for = "QNN headers", "building the qnn backend from source"
    if isinstance(headers, Blocker):
        return _absent(name, headers, needed_for)
    is_tested = PINNED_VERSION.startswith(headers.number)
    tested = "" if is_tested else f" (ExecuTorch's is {PINNED_VERSION})"
    return Finding(
        name=name,
        state="ok",
        found=f"QNN {headers.number} in {headers.root}{tested}",
        needed_for=needed_for,
    )


def _absent(name: str, problem: Blocker | None, needed_for: str) -> Finding:
    remedy = f"{problem.why}.\n{problem.remedy}" if problem else None
    return Finding(name=name, state="optional", found=None, needed_for=needed_for, remedy=remedy)


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
