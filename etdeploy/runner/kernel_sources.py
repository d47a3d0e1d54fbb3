"""Which source files of a checkout hold the selected kernels.

ExecuTorch's own selection decides what is registered, not what is compiled: the files of some 200
operators are compiled for a program that calls three, and the linker drops them. This module finds
the needed files by the kernel names in ExecuTorch's yaml files.
"""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import read_text
from etdeploy.plan.cmake_options import is_on
from etdeploy.plan.components import KERNELS_OPTIMIZED, operator_component
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.inspect import inspect_file

_PORTABLE = "kernels/portable"
_OPTIMIZED = "kernels/optimized"
_LISTS = (f"{_PORTABLE}/functions.yaml", f"{_OPTIMIZED}/optimized.yaml")
# A function at the start of a line that returns something, as kernels are written.
_DEFINED = re.compile(r"^[\w:<>,&* ]+[&* ](\w+)\(", re.MULTILINE)
_CALLED = re.compile(r"\b(\w+)\(")
_SCHEMA_NAME = re.compile(r"[\w:]+(?:\.\w+)?")


def needed_sources(checkout: Path, operators: Iterable[str]) -> tuple[str, ...] | None:
    """Names of the files `op_*.cpp` with the operators' kernels and with what those call, sorted.

    None if the files of an operator, `aten::add.out`, are unknown: then all have to be compiled.
    """
    kernels = _kernels(checkout)
    wanted: set[str] = set()
    for operator in operators:
        names = kernels.get(operator)
        if not names:
            return None
        wanted |= names
    texts = _texts(checkout)
    definitions = _definitions(texts)
    needed: set[str] = set()
    for name in wanted:
        # A kernel that a macro defines is found by its name alone.
        files = definitions.get(name) or _mentioning(texts, name)
        if not files:
            return None
        needed |= files
    return tuple(sorted({Path(file).name for file in _with_called(needed, texts, definitions)}))


def aten_operators(program: Path) -> tuple[str, ...]:
    """The operators of a program file that aten's kernels provide."""
    return tuple(
        name
        for name in inspect_file(program).operators
        if operator_component(name) == KERNELS_OPTIMIZED
    )


def _definitions(texts: dict[str, str]) -> dict[str, set[str]]:
    """The files that define a function, by its name."""
    found: dict[str, set[str]] = {}
    for file, text in texts.items():
        for name in _DEFINED.findall(text):
            found.setdefault(name, set()).add(file)
    return found


def _mentioning(texts: dict[str, str], name: str) -> set[str]:
    word = re.compile(rf"\b{re.escape(name)}\b")
    return {file for file, text in texts.items() if word.search(text)}


def _with_called(
    files: set[str], texts: dict[str, str], definitions: dict[str, set[str]]
) -> set[str]:
    """The files and all files that they call into, directly or through others."""
    needed, waiting = set(files), sorted(files)
    while waiting:
        for name in _CALLED.findall(texts[waiting.pop()]):
            called = definitions.get(name, set())
            # A name that many files define is a local helper in each of them.
            if len(called) <= _SHARED:
                waiting += sorted(called - needed)
                needed |= called
    return needed


# A kernel is defined once among the portable files and once among the optimized ones.
_SHARED = 2


def _kernels(checkout: Path) -> dict[str, set[str]]:
    """The functions that the yaml files name for each operator."""
    found: dict[str, set[str]] = {}
    for name in _LISTS:
        for entry in _entries(checkout / name):
            operator = _operator(entry)
            kernels = entry.get("kernels")
            for kernel in kernels if operator and isinstance(kernels, list) else ():
                function = str(kernel.get("kernel_name", "")).rpartition("::")[2]
                found.setdefault(str(operator), set()).add(function)
    return found


def _entries(path: Path) -> list[dict[str, Any]]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    return [e for e in content if isinstance(e, dict)] if isinstance(content, list) else []


def _operator(entry: dict[str, Any]) -> str | None:
    """`op: add.out` stands for one of aten; `func:` has the whole schema."""
    if "op" in entry:
        return f"aten::{entry['op']}"
    match = _SCHEMA_NAME.match(str(entry.get("func", "")))
    return match[0] if match else None


def _texts(checkout: Path) -> dict[str, str]:
    return {
        str(path): path.read_text(encoding="utf-8", errors="replace")
        for folder in (_PORTABLE, _OPTIMIZED)
        for path in sorted((checkout / folder / "cpu").glob("op_*.cpp"))
    }


SOURCE_DIR = "KLEIDIAI_SOURCE_DIR"
_SWITCH = "XNNPACK_ENABLE_KLEIDIAI"
_WHAT = "KleidiAI"
_XNNPACKS_FILE = "backends/xnnpack/third-party/XNNPACK/cmake/DownloadKleidiAI.cmake"
_URL = re.compile(r"^\s*URL\s+(https?://\S+)", re.MULTILINE)
_PROBE_S = 5.0
_PORTS = {"http": 80, "https": 443}
# For a proxy without a port, as in curl, which cmake downloads with.
_PROXY_PORT = 1080


def downloads_kleidiai(plan: RuntimePlan) -> bool:
    """Whether a build of the plan needs KleidiAI's sources."""
    return any(o.name == _SWITCH and is_on(o) for o in plan.options)


def kleidiai_problem(plan: RuntimePlan, checkout: Path, cmake: Path) -> Blocker | None:
    """Why KleidiAI's sources are not available; None if they are or are not needed.

    Opens at most one network connection, for up to five seconds, and transfers nothing.
    """
    if not downloads_kleidiai(plan):
        return None
    given = plan.option(SOURCE_DIR)
    if given is not None:
        return None if _has_sources(Path(given)) else _wrong(given)
    url = _url(checkout / _XNNPACKS_FILE)
    # Nothing is known while XNNPACK itself is not fetched yet.
    if url is None or _is_downloaded(cmake, url):
        return None
    reason = _unreachable(urlsplit(url))
    why = f"XNNPACK downloads KleidiAI, and {reason}"
    return Blocker(_WHAT, why, kleidiai_remedy(url)) if reason else None


def require_kleidiai(plan: RuntimePlan, checkout: Path, cmake: Path) -> None:
    """Raises if cmake could not get KleidiAI's sources; arguments as for `kleidiai_problem`."""
    problem = kleidiai_problem(plan, checkout, cmake)
    if problem:
        raise BuildError(problem.why, remedy=problem.remedy)


def _has_sources(folder: Path) -> bool:
    return folder.is_absolute() and (folder / "CMakeLists.txt").is_file()


def _wrong(given: str) -> Blocker:
    return Blocker(
        _WHAT,
        f"{SOURCE_DIR} is {given}, which is not the absolute path of a folder with KleidiAI's "
        "CMakeLists.txt",
        kleidiai_remedy("KleidiAI"),
    )


def kleidiai_remedy(what: str) -> str:
    """Both ways out: without it, or with the sources of `what`, a URL."""
    return (
        "Build without it: --set runtime.kleidiai=false\n"
        f"Or unpack {what} and name its folder: --set runtime.cmake.{SOURCE_DIR}=/path/to/kleidiai"
    )


def _url(file: Path) -> str | None:
    found = _URL.search(read_text(file))
    return found[1] if found else None


def _is_downloaded(cmake: Path, url: str) -> bool:
    """Whether the folder has the sources from this URL."""
    # XNNPACK writes its file there and unpacks beside it; another release has another URL.
    return _url(cmake / "kleidiai-download" / "CMakeLists.txt") == url and _has_sources(
        cmake / "kleidiai-source"
    )


def _unreachable(url: SplitResult) -> str | None:
    """Why the host, or the proxy that the environment names, cannot be reached; None if it can."""
    host, port = url.hostname or "", url.port or _PORTS[url.scheme]
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and not urllib.request.proxy_bypass(f"{host}:{port}"):
        through = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = through.hostname or "", through.port or _PROXY_PORT
    answers: list[str | None] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=_PROBE_S):
                answers.append(None)
        except (OSError, UnicodeError) as error:
            answers.append(getattr(error, "strerror", None) or str(error))

    # A name lookup has no timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PROBE_S)
    reason = answers[0] if answers else f"no answer within {_PROBE_S:g} s"
    return f"{host}:{port} cannot be reached: {reason}" if reason else None
