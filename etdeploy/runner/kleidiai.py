"""KleidiAI's sources, which XNNPACK downloads while it is configured for 64-bit Arm.

If the download is impossible, cmake tries for minutes and then continues without them. So etdeploy
checks first whether they are given, already downloaded, or their host can be reached.
"""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import read_text
from etdeploy.plan.model import RuntimePlan
from etdeploy.plan.relations import is_on

SOURCE_DIR = "KLEIDIAI_SOURCE_DIR"
_SWITCH = "XNNPACK_ENABLE_KLEIDIAI"
_WHAT = "KleidiAI"
_XNNPACKS_FILE = "backends/xnnpack/third-party/XNNPACK/cmake/DownloadKleidiAI.cmake"
_URL = re.compile(r"^\s*URL\s+(https?://\S+)", re.MULTILINE)
_FAILED = re.compile(r"downloading '(\S*kleidiai\S*)' failed", re.IGNORECASE)
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

    Args:
        plan: What is to be built.
        checkout: Of ExecuTorch.
        cmake: The configured folder, which may hold an earlier download.
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
    return Blocker(_WHAT, why, _remedy(url)) if reason else None


def require_kleidiai(plan: RuntimePlan, checkout: Path, cmake: Path) -> None:
    """Raises if cmake could not get KleidiAI's sources; arguments as for `kleidiai_problem`.

    Raises:
        BuildError: The sources are not available.
    """
    problem = kleidiai_problem(plan, checkout, cmake)
    if problem:
        raise BuildError(problem.why, remedy=problem.remedy)


def failed_download(lines: Iterable[str]) -> str | None:
    """What to do if cmake reports that it could not download KleidiAI; otherwise None."""
    found = (match for line in lines if (match := _FAILED.search(line)))
    return next((_remedy(match[1]) for match in found), None)


def _has_sources(folder: Path) -> bool:
    return folder.is_absolute() and (folder / "CMakeLists.txt").is_file()


def _wrong(given: str) -> Blocker:
    return Blocker(
        _WHAT,
        f"{SOURCE_DIR} is {given}, which is not the absolute path of a folder with KleidiAI's "
        "CMakeLists.txt",
        _remedy("KleidiAI"),
    )


def _remedy(what: str) -> str:
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
    said: list[str | None] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=_PROBE_S):
                said.append(None)
        except (OSError, UnicodeError) as error:
            said.append(getattr(error, "strerror", None) or str(error))

    # A name lookup has no timeout.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PROBE_S)
    reason = said[0] if said else f"no answer within {_PROBE_S:g} s"
    return f"{host}:{port} cannot be reached: {reason}" if reason else None
