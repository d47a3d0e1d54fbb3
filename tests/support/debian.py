"""Root folders of test devices, made of Debian's packages and kept between sessions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from etdeploy.core.files.basic import new_folder
from etdeploy.core.files.locks import exclusive

CACHE_VARIABLE = "ETDEPLOY_TEST_CACHE"
_SUITE = "trixie"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class RootUnavailable(Exception):  # noqa: N818 - a reason to skip
    """Why this machine cannot have a test device with a root of its own."""


def kept_root(name: str, maker: Path, make: Callable[[Path, Path], None]) -> Path:
    """The root folder of a kind of device; made on first use (30 s) and kept.

    Args:
        name: Of the kind.
        maker: The module that makes it: when its text changes, the root is made anew.
        make: Fills the new root, given an empty folder for packages and the root.

    Raises:
        RootUnavailable: Something that it takes is missing here.
    """
    texts = maker.read_bytes() + Path(__file__).read_bytes()
    root = _cache_folder() / f"{name}-{hashlib.sha256(texts).hexdigest()[:12]}"
    with exclusive(root.with_suffix(".lock"), f"the test device's root {root.name}"):
        if not root.is_dir():
            with new_folder(root) as work, tempfile.TemporaryDirectory() as unpacked:
                make(Path(unpacked), work)
    return root


def require_tools(*programs: str) -> None:
    """Makes sure that namespaces, Debian's packages and these programs can be had.

    Raises:
        RootUnavailable: They cannot.
    """
    if os.geteuid() != 0:
        raise RootUnavailable("the test device needs root, for namespaces and mounts")
    for program in ("apt-get", "dpkg", "unshare", "chroot", *programs):
        if not shutil.which(program):
            raise RootUnavailable(f"the test device needs the program {program}")


def static_qemu() -> str:
    """The emulator that an arm64 device needs here.

    Raises:
        RootUnavailable: It is not installed.
    """
    for name in ("qemu-aarch64-static", "qemu-aarch64"):
        if found := shutil.which(name):
            return found
    raise RootUnavailable("an arm64 device needs qemu: apt install qemu-user-static")


def native_architecture() -> str:
    """This machine's, by Debian's name."""
    return _output("dpkg", "--print-architecture")


def unpack(wanted: Sequence[Sequence[str]], architectures: Sequence[str], to: Path) -> None:
    """Fetches packages with all that they depend on, into a folder for each architecture.

    Args:
        wanted: Groups of packages (`bash:arm64`); one group is installable at once.
        architectures: Of all groups, by Debian's names.
        to: An empty folder.

    Raises:
        RootUnavailable: apt cannot get them.
    """
    apt = to / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (apt / folder).mkdir(parents=True)
    config = _apt_config(apt, *architectures)
    _apt(config, "update")
    for packages in wanted:
        _apt(config, "install", "--download-only", "--no-install-recommends", "-y", *packages)
    for package in (apt / "archives").glob("*.deb"):
        target = to / package.stem.rsplit("_", 1)[1]
        target.mkdir(exist_ok=True)
        subprocess.run(["dpkg", "-x", str(package), str(target)], check=True)


def _apt_config(folder: Path, *architectures: str) -> Path:
    """A configuration with an empty system of its own, so that dependencies come along."""
    (folder / "status").touch()
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.is_file() else ""
    (folder / "sources.list").write_text(f"deb {signed}{_mirror()} {_SUITE} main\n")
    config = folder / "apt.conf"
    names = "".join(f'"{name}"; ' for name in dict.fromkeys(architectures))
    config.write_text(
        f'Dir::Etc::sourcelist "{folder}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
        f'Dir::State "{folder}";\n'
        f'Dir::State::status "{folder}/status";\n'
        f'Dir::Cache "{folder}";\n'
        f"APT::Architectures {{ {names}}};\n"
        'Acquire::Languages "none";\n'
        'APT::Sandbox::User "root";\n'
    )
    return config


def _mirror() -> str:
    """Where this machine gets Debian from."""
    fields = ("--format", "$(REPO_URI)", "Identifier: Packages", "Origin: Debian")
    addresses = _output("apt-get", "indextargets", *fields).split()
    if not addresses:
        raise RootUnavailable("apt knows no Debian mirror; run apt-get update")
    return addresses[0]


def _apt(config: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "-qq", *arguments],
        env={**os.environ, "APT_CONFIG": str(config)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RootUnavailable(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-400:]}")


def _cache_folder() -> Path:
    """Where packages and roots are kept between sessions."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen or Path(tempfile.gettempdir()) / f"etdeploy-test-cache-{os.getuid()}")


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
