"""A root folder that is as near to Android as Debian's packages allow.

Android's own parts: adbd, mksh as /system/bin/sh and toybox behind every tool. There is no C
library at the usual places: adbd and the tools are started through loaders of their own in /apex,
as an Android device would not start a Linux program either. `sha256sum` is coreutils', which uses
the processor's instructions as Android's toybox (built with BoringSSL) does, and so is `dd`, which
Android's toybox has and Debian's lacks.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.files.basic import new_folder
from etdeploy.core.files.locks import exclusive

CACHE_VARIABLE = "ETDEPLOY_TEST_CACHE"
_SUITE = "trixie"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TOOLS = ("toybox", "mksh", "coreutils")
_COREUTILS = ("sha256sum", "dd")
# Those of Android's toybox commands that a runner, a test or etdeploy itself may want.
_APPLETS = """
basename cat chmod chown cksum cmp cp cut date df dirname du echo env expr false find fold
getconf grep head hostname id kill killall ln ls md5sum mkdir mktemp mount mv nice nohup nproc od
paste pgrep pidof pkill printenv printf ps pwd readlink realpath renice rm rmdir sed seq setsid
sha1sum sleep sort split stat sync tail taskset tee time timeout top touch tr true truncate uname
uniq uptime usleep wc which xargs yes
"""

_TOOL = """#!/system/bin/sh
exec /apex/tools/ld.so --argv0 "${0##*/}" --library-path /apex/tools/lib /apex/tools/%s "$@"
"""
_GETPROP = """#!/system/bin/sh
if [ $# -eq 0 ]; then exec cat /mnt/getprop; fi
while read -r line; do
  case "$line" in "[$1]: ["*) line=${line#*]: ?}; echo "${line%]}"; exit;; esac
done </mnt/getprop
echo
"""
_DUMPSYS = """#!/system/bin/sh
if [ -r "/mnt/dumpsys-$1" ]; then exec cat "/mnt/dumpsys-$1"; fi
echo "Can't find service: $1"
"""


class AdbdUnavailable(Exception):  # noqa: N818 - a reason to skip
    """Why this machine cannot have such a device."""


@dataclass(frozen=True)
class Flavour:
    """An ABI by its names in Android, Debian and the GNU tools."""

    abi: str
    debian: str
    gnu: str

    @property
    def is_native(self) -> bool:
        return self.debian == _output("dpkg", "--print-architecture")


X86_64 = Flavour("x86_64", "amd64", "x86_64")
ARM64 = Flavour("arm64-v8a", "arm64", "aarch64")


def cache_folder() -> Path:
    """Where packages and roots are kept between sessions."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen or Path(tempfile.gettempdir()) / f"etdeploy-test-cache-{os.getuid()}")


def obtain_root(flavour: Flavour) -> Path:
    """The root folder for a flavour; made on first use (30 s) and kept.

    Raises:
        AdbdUnavailable: Something that it takes is missing here.
    """
    require_tools()
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    root = cache_folder() / f"android-{flavour.abi}-{version}"
    with exclusive(root.with_suffix(".lock"), f"the test device's root {root.name}"):
        if not root.is_dir():
            with new_folder(root) as work, tempfile.TemporaryDirectory() as unpacked:
                _unpack(flavour, Path(unpacked))
                _assemble(flavour, Path(unpacked), work)
    return root


def require_tools() -> None:
    """Makes sure that namespaces and Debian's packages can be had.

    Raises:
        AdbdUnavailable: They cannot.
    """
    if os.geteuid() != 0:
        raise AdbdUnavailable("the test device needs root, for network namespaces and mounts")
    for tool in ("apt-get", "dpkg", "unshare", "ip", "chroot"):
        if not shutil.which(tool):
            raise AdbdUnavailable(f"the test device needs the program {tool}")


def _unpack(flavour: Flavour, to: Path) -> None:
    """Fetches and unpacks adbd for this machine, and the tools for the flavour."""
    native = _output("dpkg", "--print-architecture")
    apt = to / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (apt / folder).mkdir(parents=True)
    config = _apt_config(apt, native, flavour.debian)
    _apt(config, "update")
    wanted = [f"adbd:{native}", *(f"{name}:{flavour.debian}" for name in _TOOLS)]
    for packages in ([wanted[0]], wanted[1:]):
        _apt(config, "install", "--download-only", "--no-install-recommends", "-y", *packages)
    for package in (apt / "archives").glob("*.deb"):
        architecture = package.stem.rsplit("_", 1)[1]
        target = to / architecture
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
        raise AdbdUnavailable("apt knows no Debian mirror; run apt-get update")
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
        raise AdbdUnavailable(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-400:]}")


def _assemble(flavour: Flavour, unpacked: Path, root: Path) -> None:
    native = unpacked / _output("dpkg", "--print-architecture")
    foreign = unpacked / flavour.debian
    for folder in ("system/bin", "data/local/tmp", "proc", "dev", "mnt", "etc"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("system/bin")
    _private_libraries(native, root / "apex/adbd")
    _private_libraries(foreign, root / "apex/tools")
    shutil.copy(native / "usr/lib/android-sdk/platform-tools/adbd", root / "apex/adbd/adbd")
    shutil.copy(foreign / "usr/bin/toybox", root / "apex/tools/toybox")
    for name in _COREUTILS:
        shutil.copy(foreign / "usr/bin" / name, root / "apex/tools" / name)
        _script(root / "system/bin" / name, _TOOL % name)
    shutil.copy(foreign / f"usr/lib/{flavour.gnu}-linux-musl/bin/mksh", root / "system/bin/sh")
    binaries = root / "system/bin"
    _script(binaries / "toybox", _TOOL % "toybox")
    _script(binaries / "getprop", _GETPROP)
    _script(binaries / "dumpsys", _DUMPSYS)
    for name in _APPLETS.split():
        (binaries / name).symlink_to("toybox")


def _private_libraries(unpacked: Path, to: Path) -> None:
    (to / "lib").mkdir(parents=True)
    for folder in (unpacked / "usr/lib").glob("*-linux-gnu"):
        for library in (*folder.glob("*.so*"), *folder.glob("android/*.so*")):
            if library.is_file():
                shutil.copy(library, to / "lib" / library.name)
    loader = next((to / "lib").glob("ld-linux-*.so.*"))
    shutil.copy(loader, to / "ld.so")
    (to / "ld.so").chmod(0o755)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
