#!/usr/bin/env python3
"""Sets etdeploy up in .venv and runs it, or its tests. Needs only Python's standard library.

    python3 dev.py run [ARGUMENTS OF etdeploy run]
    python3 dev.py test [--all | ARGUMENTS OF pytest]
    python3 dev.py docs [build | serve] [ARGUMENTS OF mkdocs]

`test` checks style and types first, then runs several files of tests at a time where there is room;
`test --all` includes the tests marked nightly. With other arguments it only runs pytest. As root on
Debian or Ubuntu it installs the system packages that tests with real compilers and devices need;
elsewhere it lists them and skips those tests. `docs` writes the documentation as a site into site/;
`docs serve` shows it at http://127.0.0.1:8000 and follows changes.
"""

# Every Python 3 must be able to read the part up to `use_supported_python()`, so that an old one
# can say what it needs: no newer syntax there, and no `from __future__ import annotations`.
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, NEWEST = (3, 10), (3, 13)


def use_supported_python() -> None:
    """Continues with another Python on this machine if this one is too old or too new."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        other = shutil.which(f"python3.{minor}")
        # Version managers put stubs on the PATH that only report what is not installed.
        if other and subprocess.call([other, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(other, [other, str(Path(__file__).resolve()), *sys.argv[1:]])  # noqa: S606
    sys.exit(
        f"etdeploy needs Python 3.10 to 3.13. This is Python {sys.version.split()[0]}, and there "
        "is no python3.10 to python3.13 on the PATH."
    )


if __name__ == "__main__":
    use_supported_python()

import hashlib  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import re  # noqa: E402
import shlex  # noqa: E402
import signal  # noqa: E402
from dataclasses import dataclass  # noqa: E402

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".etdeploy.json"
WEIGHTS = ROOT / "tests" / "weights.txt"
EXIT_BUILD = 4
# Some tests export two models at once, and an export takes up to 3 GB.
BYTES_OF_A_PROCESS = 6 << 30


@dataclass(frozen=True)
class SystemPackage:
    """A program that tests look for, the Debian package that provides it, and what needs it."""

    program: str
    package: str
    needed_for: str


SYSTEM_PACKAGES = (
    SystemPackage("g++", "g++", "building runners"),
    SystemPackage("git", "git", "the recipe's revision in run records"),
    SystemPackage("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu", "runners for arm64"),
    SystemPackage("qemu-aarch64-static", "qemu-user-static", "running arm64 runners here"),
    SystemPackage("ccache", "ccache", "builds that use ccache"),
    SystemPackage("adb", "adb", "devices behind an adb server"),
    SystemPackage("ssh", "openssh-client", "boards over ssh"),
    SystemPackage("sshd", "openssh-server", "an ssh server as a test board"),
    SystemPackage("pg_ctlcluster", "postgresql", "a history in PostgreSQL"),
    SystemPackage("ip", "iproute2", "an Android debug daemon as a test device"),
    SystemPackage("chromium", "chromium", "reports in a browser"),
    SystemPackage("javac", "openjdk-17-jdk-headless", "compiling Android apps"),
    SystemPackage("mvn", "maven", "getting what compiles Android apps"),
    SystemPackage("apksigner", "apksigner", "signing Android apps"),
    SystemPackage("zipalign", "zipalign", "checking Android apps"),
    SystemPackage("espeak-ng", "espeak-ng", "speech for a model that detects it"),
)


class SetupError(Exception):
    """The set-up cannot continue; the text says what to do."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    verb, rest = (arguments or [""])[0], arguments[1:]
    verbs = {"run": run, "test": test, "docs": build_docs}
    if verb not in verbs:
        print(__doc__, file=sys.stderr)
        return 0 if verb in ("-h", "--help") else 2
    try:
        return verbs[verb](rest)
    except SetupError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped. Run the same command again to continue.")
        return 130


def run(arguments: list[str]) -> int:
    """Sets up, then replaces itself with `etdeploy run`, which gets all signals."""
    require_compiler()
    set_up("export", *extras_for(arguments))
    program = str(VENV / "bin" / "etdeploy")
    os.execve(program, [program, "run", *arguments], environment())  # noqa: S606


def extras_for(arguments: list[str]) -> list[str]:
    """The extras that the recipes of `etdeploy run` need, by what they and the options name."""
    found = re.findall(r"(?:^|\0)(?:-r|--recipe)[\0=]?([^\0]+)", "\0".join(arguments))
    recipes = [Path(name).expanduser() for name in found]
    texts = ["\n".join(arguments)]
    for recipe in recipes:  # which grows by what they extend
        bundled = ROOT / "recipes" / f"{recipe.name.removesuffix('.yaml')}.yaml"
        path = next((p for p in (recipe, bundled) if p.is_file()), None)
        if path is None or len(texts) > 20:  # etdeploy says what is wrong
            continue
        texts.append(path.read_text(errors="replace"))
        parents = re.findall(r"^extends:\s*['\"]?([^\s'\"#]+)", texts[-1], re.MULTILINE)
        recipes += [path.parent / parent for parent in parents]
    whole = re.sub(r"#.*", "", "\n".join(texts))
    return [extra for extra, pattern in EXTRAS.items() if re.search(pattern, whole)]


# What shows that a recipe needs an extra of pyproject.toml.
EXTRAS = {
    "llm": r"--model\b|\bhf[:=]",
    "openvino": r"\bbackend[:=]\s*['\"]?openvino\b",
    "qnn": r"\bbackend[:=]\s*['\"]?qnn\b",
    "timm": r"\btimm[:=/]",
}


def test(arguments: list[str]) -> int:
    """Style, types, then the tests; with arguments other than `--all`, pytest alone."""
    install_system_packages()
    set_up(
        "export",
        "dev",
        "musl",
        "openvino",
        "qnn",
        "postgres",
        "llm",
        "timm",
        "farm",
        "serve",
        "docs",
    )
    checks = [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]]
    is_whole_suite = arguments in ([], ["--all"])
    tests = ["pytest", *arguments, *(side_by_side() if is_whole_suite else [])]
    for tool, *options in [*(checks if is_whole_suite else []), tests]:
        say(shlex.join([tool, *options]))
        code = call([str(VENV / "bin" / tool), *options])
        if code:
            return code
    return 0


def build_docs(arguments: list[str]) -> int:
    """Builds or serves the documentation with MkDocs; a broken link is an error."""
    set_up("docs")
    # Its warning is about a version 2 of MkDocs that etdeploy does not use.
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    return call([str(VENV / "bin" / "mkdocs"), *(arguments or ["build"])])


def side_by_side() -> list[str]:
    """Options of pytest for three processes on two cores, as far as this machine has memory.

    Many tests wait: for a device, a time limit, a child with one busy thread. The files keep their
    order, in which those that take minutes come first, so that all processes end at about the same
    time.
    """
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):  # this system does not say
        memory_bytes = 0
    processes = min((os.cpu_count() or 1) * 3 // 2, memory_bytes // BYTES_OF_A_PROCESS)
    if processes < 2:
        return []
    return [
        *("--numprocesses", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"),
        "--max-worker-restart=0",  # a file that crashes its process would run again, and has hung
    ]


def require_compiler() -> None:
    """Looks for a C++ compiler before several GB are downloaded."""
    chosen = shlex.split(os.environ.get("CXX", ""))[:1]
    if any(shutil.which(name) for name in chosen or ("c++", "g++", "clang++")):
        return
    if chosen:
        raise SetupError(f"CXX names the compiler {chosen[0]}, which does not exist.", EXIT_BUILD)
    remedy = "xcode-select --install" if sys.platform == "darwin" else "sudo apt-get install g++"
    raise SetupError(
        f"No C++ compiler was found, and the runner has to be compiled. To install one:\n"
        f"    {remedy if sys.platform == 'darwin' or shutil.which('apt-get') else 'install g++'}",
        EXIT_BUILD,
    )


def set_up(*extras: str) -> None:
    """Creates .venv and installs etdeploy with its extras there, unless that is already done."""
    wishes = [path for path in (ROOT / "pyproject.toml", WEIGHTS) if path.is_file()]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in wishes)).hexdigest()
    installed = read_stamp(digest) if venv_works() else set()
    if installed >= set(extras):
        return
    require_writable()
    wanted = sorted(installed | set(extras))
    STAMP.unlink(missing_ok=True)
    make_venv()
    say(f"installing etdeploy with PyTorch and ExecuTorch into {VENV}")
    if not installed:
        say(f"the first time this downloads {download_size()}; later runs start at once")
    packages = [["--editable", f"{ROOT}[{','.join(wanted)}]"]]
    if "dev" in wanted:
        packages.append(["--no-deps", "--requirement", str(WEIGHTS)])
    for options in packages:
        must(
            [*installer(), *options],
            "The packages could not be installed; the reason is above. Usual causes: no network "
            "connection, or a full disk. Run the same command to try again.",
        )
    STAMP.write_text(json.dumps({"pyproject": digest, "extras": wanted}))


def require_writable() -> None:
    """Checks that .venv can be created, before a tool fails with a misleading message."""
    folder = VENV if VENV.is_dir() else ROOT
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(
            f"{folder} cannot be written to, and etdeploy is installed in {VENV}. Make the folder "
            "writable, or use a checkout in another place."
        )


def read_stamp(digest: str) -> set[str]:
    """The extras that were installed for this pyproject.toml."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return set()
    return set(stamp["extras"]) if stamp.get("pyproject") == digest else set()


def venv_works() -> bool:
    """Whether .venv has a Python that etdeploy runs on; it need not be this one."""
    code = f"import sys; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    try:
        return subprocess.call([PYTHON, "-c", code], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def make_venv() -> None:
    """Creates .venv with this Python, replacing one that does not work."""
    if venv_works():
        return
    if VENV.exists() and not (VENV / "pyvenv.cfg").exists():
        raise SetupError(f"{VENV} is not a virtual environment; please move it away.")
    shutil.rmtree(VENV, ignore_errors=True)
    say(f"creating {VENV} with Python {platform.python_version()}")
    uv = find_uv()
    command = [uv, "venv", "--quiet", "--python"] if uv else [sys.executable, "-m", "venv"]
    try:
        must(
            [*command, *([sys.executable] if uv else []), str(VENV)],
            "This Python cannot create virtual environments. On Debian or Ubuntu:\n"
            f"    sudo apt-get install python3.{sys.version_info[1]}-venv",
        )
    except (SetupError, KeyboardInterrupt):
        shutil.rmtree(VENV, ignore_errors=True)
        raise


def find_uv() -> str | None:
    """A uv on the PATH that works: much faster than pip."""
    found = shutil.which("uv")
    works = found and subprocess.run([found, "--version"], capture_output=True).returncode == 0
    return found if works else None


def installer() -> list[str]:
    """The command that installs into .venv: uv, or pip where uv is not available."""
    own = VENV / "bin" / "uv"
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    uv = find_uv()
    if not uv and not own.exists():
        subprocess.run([*pip, "--quiet", "uv"], stderr=subprocess.DEVNULL)
    uv = uv or (str(own) if own.exists() else None)
    return [uv, "pip", "install", "--python", str(PYTHON)] if uv else pip


def download_size() -> str:
    """The size of the packages; PyTorch for Linux x86_64 includes NVIDIA's libraries."""
    big = sys.platform == "linux" and platform.machine() == "x86_64"
    return "about 3 GB, and takes 5 GB of disk" if big else "about 500 MB"


def install_system_packages() -> None:
    """As root on Debian or Ubuntu installs what tests need; elsewhere reports what is missing."""
    missing = [entry for entry in SYSTEM_PACKAGES if not is_installed(entry)]
    if missing and shutil.which("apt-get") and os.geteuid() == 0:
        packages = [entry.package for entry in missing]
        say(f"installing {' '.join(packages)}")
        # If one package is missing from the archive, the others are still worth installing.
        if apt_get("update") and not apt_get("install", *packages):
            for package in packages:
                apt_get("install", package)
        missing = [entry for entry in missing if not is_installed(entry)]
    if missing:
        say("not installed, so the tests that need them are skipped:")
        for entry in missing:
            say(f"    {entry.package:<24} {entry.needed_for}")
        if shutil.which("apt-get"):
            say(f"  sudo apt-get install {' '.join(entry.package for entry in missing)}")


def is_installed(entry: SystemPackage) -> bool:
    """Whether its program is there; those of servers are not on every user's PATH."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    return shutil.which(entry.program, path=path) is not None


def apt_get(verb: str, *packages: str) -> bool:
    """Runs apt-get without questions; errors are shown."""
    options = ["--yes", "--no-install-recommends"] if packages else []
    done = subprocess.run(
        ["apt-get", verb, "--quiet=2", *options, *packages],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.DEVNULL,
    )
    return done.returncode == 0


def must(command: list[str], remedy: str) -> None:
    """Runs a step of the set-up. Its output goes to stderr: stdout is for results."""
    code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr.fileno()).returncode
    if code:
        raise SetupError(remedy)


def call(command: list[str]) -> int:
    """Runs a command in the project's folder; Ctrl-C reaches it too, and dev.py waits for it."""
    child = subprocess.Popen(command, cwd=ROOT, env=environment())
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        while True:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                continue
            return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGTERM, before)


def environment() -> dict[str, str]:
    """The caller's, with the programs of .venv first.

    Without compiled modules, each process that imports PyTorch would compile it for ten seconds: of
    a caller that wants none in its folders, they go into .venv.
    """
    caller = dict(os.environ)
    if caller.pop("PYTHONDONTWRITEBYTECODE", None):
        caller.setdefault("PYTHONPYCACHEPREFIX", str(VENV / "pycache"))
    return {**caller, "PATH": f"{VENV / 'bin'}{os.pathsep}{caller.get('PATH', '')}"}


def say(text: str) -> None:
    """Prints a message; every line begins with this script's name."""
    for line in text.splitlines():
        print(f"dev.py: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
