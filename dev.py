#!/usr/bin/env python3
"""Sets etdeploy up in .venv and runs it, or its tests. Needs only Python's standard library.

    python3 dev.py run [ARGUMENTS OF etdeploy run]
    python3 dev.py test [ARGUMENTS OF pytest]

`test` without arguments checks style and types first. As root on Debian or Ubuntu it installs the
system packages that the tests with real compilers and devices need; elsewhere it names them, and
those tests are skipped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SUPPORTED = ((3, 10), (3, 13))

# What `test` looks for, the Debian package that brings it, and the tests that need it.
SYSTEM_PACKAGES = (
    ("g++", "g++", "building runners"),
    ("git", "git", "the recipe's revision in run records"),
    ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu", "runners for arm64"),
    ("qemu-aarch64-static", "qemu-user-static", "running arm64 runners here"),
    ("ccache", "ccache", "builds that use ccache"),
    ("adb", "adb", "devices behind an adb server"),
    ("debootstrap", "debootstrap", "the Android debug daemon as a test device"),
    ("ip", "iproute2", "a network of its own for the test device"),
    ("busybox", "busybox-static", "a test device without a C library"),
)


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in ("run", "test"):
        print(__doc__)
        return 2
    use_supported_python(arguments)
    verb, rest = arguments[0], arguments[1:]
    if verb == "run":
        install("export")
        return call([VENV / "bin" / "etdeploy", "run", *rest])
    install_system_packages()
    install("export,dev")
    return test(rest)


def test(arguments: list[str]) -> int:
    """Style, types, then every test; with arguments, pytest alone."""
    checks = [] if arguments else [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]]
    for tool, *options in [*checks, ["pytest", *arguments]]:
        say(" ".join([tool, *options]))
        code = call([VENV / "bin" / tool, *options])
        if code:
            return code
    return 0


def use_supported_python(arguments: list[str]) -> None:
    """Goes on with another Python when this one is too old or too new."""
    if SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        return
    for minor in range(SUPPORTED[1][1], SUPPORTED[0][1] - 1, -1):
        other = shutil.which(f"python3.{minor}")
        works = other and not subprocess.run([other, "-c", ""], capture_output=True).returncode
        if other and works:
            os.execv(other, [other, str(Path(__file__)), *arguments])  # noqa: S606
    sys.exit(
        f"etdeploy needs Python 3.10 to 3.13; this is {sys.version.split()[0]}, and no "
        "python3.10 to python3.13 is on the PATH."
    )


def install(extras: str) -> None:
    """Makes .venv and installs etdeploy with its extras there, unless that is done already."""
    stamp = VENV / ".etdeploy"
    wanted = hashlib.sha256(
        f"{extras} {sys.version_info[:2]}".encode() + (ROOT / "pyproject.toml").read_bytes()
    ).hexdigest()
    if stamp.is_file() and wanted in stamp.read_text().split():
        return
    make_venv()
    say("installing etdeploy with PyTorch and ExecuTorch (the first time: some GB to download)")
    must(
        [uv(), "pip", "install", "--quiet", "--python", PYTHON, "--editable", f"{ROOT}[{extras}]"],
        "The packages could not be installed. Is there a network connection and enough disk space?",
    )
    with stamp.open("a") as known:
        known.write(wanted + "\n")


def make_venv() -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if PYTHON.exists() and (VENV / "lib" / version).is_dir():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    say(f"making {VENV} with {sys.executable}")
    must(
        [sys.executable, "-m", "venv", VENV],
        f"This Python cannot make virtual environments. On Debian or Ubuntu:\n"
        f"    apt-get install {version}-venv",
    )


def uv() -> str | Path:
    """The uv program: much faster than pip, and it shares files between environments."""
    found = shutil.which("uv")
    if found and not subprocess.run([found, "--version"], capture_output=True).returncode:
        return found
    own = VENV / "bin" / "uv"
    if not own.exists():
        must(
            [PYTHON, "-m", "pip", "install", "--quiet", "uv"],
            "uv could not be installed. Is there a network connection?",
        )
    return own


def install_system_packages() -> None:
    missing = [entry for entry in SYSTEM_PACKAGES if not shutil.which(entry[0])]
    if not missing:
        return
    packages = [package for _, package, _ in missing]
    if shutil.which("apt-get") and os.geteuid() == 0:
        say(f"installing {', '.join(packages)}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        must(["apt-get", "update", "-qq"], "apt-get update failed.", environment)
        must(
            ["apt-get", "install", "-qq", "--no-install-recommends", *packages],
            "The system packages could not be installed.",
            environment,
        )
        return
    say("not installed, so the tests that need them are skipped:")
    for _, package, purpose in missing:
        print(f"    {package:<24} {purpose}")
    if shutil.which("apt-get"):
        print(f"  sudo apt-get install {' '.join(packages)}")


def must(command: list[str | Path], remedy: str, environment: dict[str, str] | None = None) -> None:
    """Runs a command of the set-up; its failure ends everything with a sentence."""
    result = subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if result.returncode:
        sys.exit(f"{result.stderr.rstrip()}\n\n{remedy}")


def call(command: list[str | Path]) -> int:
    """Runs a command in the user's folder, or the project's for the tests; gives its exit code."""
    environment = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    folder = None if Path(command[0]).name == "etdeploy" else ROOT
    try:
        return subprocess.run(
            [str(part) for part in command], env=environment, cwd=folder
        ).returncode
    except KeyboardInterrupt:
        return 130


def say(text: str) -> None:
    print(f"dev.py: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
