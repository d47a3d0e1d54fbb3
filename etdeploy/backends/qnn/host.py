"""Whether this machine can compile programs for Qualcomm's HTP, and with which environment."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from etdeploy.backends.qnn.libraries import absent_to_export
from etdeploy.backends.qnn.sdk import COMPILER, VARIABLE, QnnSdk, find_sdk
from etdeploy.backends.qnn.versions import PINNED_VERSION
from etdeploy.core.blocker import Blocker
from etdeploy.core.finding import Finding
from etdeploy.core.processes import process

_LIBRARY_PATH = "LD_LIBRARY_PATH"
# ExecuTorch's adaptor asks for this function first, and aborts the process where it is not there.
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).QnnInterface_getProviders"
_PATIENCE_S = 120.0
# What ExecuTorch's guide to this backend asks for, to build the part that exports.
_LEAST_COMPILER = 13

# Messages of the dynamic loader, and what to do.
_LOADER_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"lib(c\+\+(abi)?|unwind)\.so\S*: cannot open",
        "apt-get install libc++1   (Fedora: dnf install libcxx)",
    ),
    (
        r"`GLIBC_[\d.]+' not found",
        "Export on a newer Linux: the SDK is made for Ubuntu 22.04, which has glibc 2.35.",
    ),
    (r"`(GLIBCXX|CXXABI)_[\d.]+' not found", "apt-get install libstdc++6   (a newer one)"),
    (
        r"(file too short|invalid ELF header|wrong ELF class|symbol: QnnInterface_getProviders)",
        f"Unpack all of the SDK again, and export {VARIABLE}=/path/to/qairt/VERSION",
    ),
)


def sdk_environment(sdk: QnnSdk, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a process that compiles with the SDK.

    With QNN_SDK_ROOT set, ExecuTorch downloads nothing and leaves the library path to the caller.
    """
    before = environ.get(_LIBRARY_PATH)
    libraries = str(sdk.host_libraries)
    return {
        VARIABLE: str(sdk.root),
        _LIBRARY_PATH: f"{libraries}:{before}" if before else libraries,
    }


def loading_problem(sdk: QnnSdk, environ: Mapping[str, str]) -> Blocker | None:
    """What prevents loading the SDK's compiler here; a child process tries to load it.

    The loader names what is missing more reliably than any list of the SDK's needs: libc++.so.1
    (10895, 5120) and a C library that is too old are the usual causes.
    """
    library = sdk.host_libraries / COMPILER
    outcome = process.run(
        process.Request(
            argv=(sys.executable, "-c", _LOAD, str(library)),
            env=sdk_environment(sdk, environ),
            timeout_s=_PATIENCE_S,
        )
    )
    if outcome.ok:
        return None
    if outcome.timed_out:
        said = f"it had not finished after {_PATIENCE_S:.0f} s"
    elif outcome.signal_name:
        said = f"it ended with {outcome.signal_name}"
    else:
        said = outcome.stderr
    return loader_problem(library, said)


def loader_problem(library: Path, said: str) -> Blocker:
    """What the dynamic loader's message means.

    Args:
        library: What was loaded.
        said: The output of the process; its last line counts.
    """
    lines = said.strip().splitlines() or ["it printed nothing"]
    last = re.sub(r"^(OSError|AttributeError): ", "", lines[-1])
    remedy = next((text for pattern, text in _LOADER_REMEDIES if re.search(pattern, last)), None)
    return Blocker(
        "Qualcomm's compiler",
        f"{library} cannot be loaded: {last}",
        remedy or f"See what is missing: ldd {library}",
    )


def examine_qnn(environ: Mapping[str, str], home: Path) -> tuple[Finding, ...]:
    """Examines everything that the backend qnn needs; only the SDK when it is missing.

    Args:
        environ: The environment.
        home: The user's home folder, where ExecuTorch keeps what it downloads.
    """
    sdk = find_sdk(environ, home)
    if isinstance(sdk, Blocker):
        return (
            Finding(
                name="QNN SDK",
                state="optional",
                found=None,
                needed_for="the qnn backend",
                remedy=f"{sdk.why}.\n{sdk.remedy}",
            ),
        )
    return (_sdk_finding(sdk), _loading(sdk, environ), *_compiler())


def _sdk_finding(sdk: QnnSdk) -> Finding:
    archs = sdk.htp_archs
    tested = "" if PINNED_VERSION.startswith(sdk.number) else f", ExecuTorch's is {PINNED_VERSION}"
    return Finding(
        name="QNN SDK",
        state="ok",
        found=f"{sdk.number} in {sdk.root} (HTP {archs[0]} to {archs[-1]}{tested})",
        needed_for="the qnn backend",
    )


def _loading(sdk: QnnSdk, environ: Mapping[str, str]) -> Finding:
    problem = absent_to_export(sdk)
    if problem is None and sys.platform == "linux":
        problem = loading_problem(sdk, environ)
    return Finding(
        name="QNN compiler",
        state="optional" if problem else "ok",
        found=None if problem else COMPILER,
        needed_for="exporting for the qnn backend",
        remedy=f"{problem.why}.\n{problem.remedy}" if problem else None,
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
