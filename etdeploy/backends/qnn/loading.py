"""Whether Qualcomm's compiler can be loaded here, in which environment; doctor's checks of QNN."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from etdeploy.backends.qnn.compiler import (
    CompileKit,
    compile_problem,
    find_compile_kit,
    whole_again,
)
from etdeploy.backends.qnn.deploy import DeployKit, find_deploy_kit
from etdeploy.backends.qnn.facts import PINNED_VERSION, is_newer
from etdeploy.backends.qnn.sdk import (
    COMPILER,
    HOST_LIBRARIES,
    SDK_VARIABLE,
    QnnSdk,
    find_headers,
    headers_problem,
)
from etdeploy.backends.values import Workstation, tool_finding
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import Blocker
from etdeploy.core.processes import process
from etdeploy.core.values import DoctorCheck

_LIBRARY_PATH = "LD_LIBRARY_PATH"
# ExecuTorch's adaptor asks for this function first, and aborts the process where it is not there.
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).QnnInterface_getProviders"
_TIMEOUT_S = 120.0

_WHOLE_AGAIN = f"Unpack all of the SDK again, and export {SDK_VARIABLE}=/path/to/qairt/VERSION"
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
        _WHOLE_AGAIN,
    ),
)


def compile_environment(kit: CompileKit, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for a process that compiles with the kit.

    With QNN_SDK_ROOT set, ExecuTorch downloads nothing, leaves the library path to the caller, and
    asks `lib/x86_64-linux-clang/libQnnHtp.so` there for its version.
    """
    return {SDK_VARIABLE: str(kit.root), **library_environment(kit, environ)}


def library_environment(kit: CompileKit, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable for a process that loads the kit's libraries by name, before the user's own."""
    before = environ.get(_LIBRARY_PATH)
    libraries = str(kit.libraries)
    return {_LIBRARY_PATH: f"{libraries}:{before}" if before else libraries}


def lay_out(kit: CompileKit) -> None:
    """Makes the folder for QNN_SDK_ROOT: a link to the package, of which nothing is copied.

    Once for each environment that has the package, Qualcomm's licence is named. Nothing is made for
    an SDK, which is such a folder and comes with terms of its own.
    """
    if kit.license is None:
        return
    link = Path(HOST_LIBRARIES)

    def build(folder: Path) -> None:
        (folder / "sdk.yaml").write_text(f"# {kit.from_}\nversion: {kit.version}\n")
        (folder / link).parent.mkdir(parents=True)
        (folder / link).symlink_to(kit.libraries, target_is_directory=True)

    workspace = Workspace.default()
    is_new = workspace.obtain(
        workspace.entry(CacheKind.KITS, kit.root.name),
        build,
        usable=lambda folder: (folder / link).resolve() == kit.libraries.resolve(),
    )
    if is_new:
        console.message(
            f"note: Qualcomm's AI Stack licence applies to the compiler in {kit.from_}; its text "
            f"is in {kit.license}"
        )


def loading_problem(kit: CompileKit, environ: Mapping[str, str]) -> Blocker | None:
    """What prevents loading the kit's compiler here; a child process tries to load it.

    The loader names what is missing more reliably than any list of a kit's needs: libc++.so.1
    (10895, 5120) and a C library that is too old are the usual causes.
    """
    library = kit.libraries / COMPILER
    outcome = process.run(
        process.Request(
            argv=(sys.executable, "-c", _LOAD, str(library)),
            env=library_environment(kit, environ),
            timeout_s=_TIMEOUT_S,
        )
    )
    if outcome.ok:
        return None
    if outcome.timed_out:
        said = f"it had not finished after {_TIMEOUT_S:.0f} s"
    elif outcome.signal_name:
        said = f"it ended with {outcome.signal_name}"
    else:
        said = outcome.stderr
    return loader_problem(library, said, None if kit.license is None else whole_again())


def loader_problem(library: Path, said: str, again: str | None = None) -> Blocker:
    """What the dynamic loader's message means."""
    lines = said.strip().splitlines() or ["it printed nothing"]
    last = re.sub(r"^(OSError|AttributeError): ", "", lines[-1])
    remedy = next((text for pattern, text in _LOADER_REMEDIES if re.search(pattern, last)), None)
    return Blocker(
        "Qualcomm's compiler",
        f"{library} cannot be loaded: {last}",
        (again if again and remedy == _WHOLE_AGAIN else remedy)
        or f"See what is missing: ldd {quoted(str(library))}",
    )


# What ExecuTorch's guide to this backend asks for, to build the part that exports.
_LEAST_GCC = 13


def examine_qnn(station: Workstation) -> tuple[DoctorCheck, ...]:
    """Examines what the backend qnn needs to compile, to deploy and to build.

    If nothing is installed, only the compiler is reported: everybody needs it first.
    """
    kit, phone = find_compile_kit(station), find_deploy_kit(station)
    headers = headers_problem(station) or find_headers(station)
    findings = [
        tool_finding(name, needed_for, found)
        for name, needed_for, found in (
            (
                "QNN compiler",
                "exporting for the qnn backend, and simulating",
                _examine_compiler(kit, station),
            ),
            (
                "QNN for phones",
                "running programs of the qnn backend on phones",
                _examine_phone_libraries(phone, kit),
            ),
            ("QNN headers", "building the qnn backend from source", _examine_headers(headers)),
        )
    ]
    if all(isinstance(found, Blocker) for found in (kit, phone, headers)):
        return tuple(findings[:1])
    return (*findings, *_old_gcc())


def _examine_compiler(kit: CompileKit | Blocker, station: Workstation) -> str | Blocker:
    if isinstance(kit, Blocker):
        return kit
    problem = compile_problem(kit)
    if not problem and sys.platform == "linux":
        # Elsewhere it cannot be loaded, and an export says so.
        problem = loading_problem(kit, station.environ)
    return problem or f"QNN {kit.number} of {kit.from_}"


def _examine_phone_libraries(
    phone: DeployKit | Blocker, kit: CompileKit | Blocker
) -> str | Blocker:
    if isinstance(phone, Blocker):
        return phone
    archs = phone.htp_archs
    facts = [f"HTP {archs[0]} to {archs[-1]}" if archs else "libraries for no HTP"]
    if isinstance(kit, CompileKit) and is_newer(kit.version, phone.version):
        facts.append(f"too old for programs of QNN {kit.number}")
    return f"{phone.number} in {phone.place} ({', '.join(facts)})"


def _examine_headers(headers: QnnSdk | Blocker) -> str | Blocker:
    if isinstance(headers, Blocker):
        return headers
    is_tested = PINNED_VERSION.startswith(headers.number)
    tested = "" if is_tested else f" (ExecuTorch's is {PINNED_VERSION})"
    return f"QNN {headers.number} in {headers.root}{tested}"


def _old_gcc() -> Iterator[DoctorCheck]:
    """g++; the wheel has the part for export already built, so an export runs without it."""
    path = process.which("g++")
    version = _gcc_version(path) if path else None
    if version is None or int(version.split(".")[0]) < _LEAST_GCC:
        yield DoctorCheck(
            name=f"g++ {_LEAST_GCC}",
            state="optional",
            found=version,
            needed_for="building ExecuTorch's exporter for QNN from source (the wheel has it)",
            remedy="Not needed with ExecuTorch's wheel. A build from source takes the PATH's g++,\n"
            f"which has to be release {_LEAST_GCC} or newer, as in Debian 13 and Ubuntu 24.04:\n"
            "apt-get install g++",
        )


def _gcc_version(path: Path) -> str | None:
    try:
        outcome = process.run(process.Request((str(path), "-dumpfullversion"), timeout_s=20))
    except OSError:
        return None
    text = outcome.stdout.strip()
    return text if outcome.ok and re.fullmatch(r"\d+(\.\d+)*", text) else None
