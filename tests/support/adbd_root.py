"""A root folder that is as near to Android as Debian's packages allow.

Android's own parts: adbd, mksh as /system/bin/sh and toybox behind every tool. There is no C
library at the usual places: adbd and the tools are started through loaders of their own in /apex,
as an Android device would not start a Linux program either. `sha256sum` is coreutils', which uses
the processor's instructions as Android's toybox (built with BoringSSL) does, and so is `dd`, which
Android's toybox has and Debian's lacks.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.debian import kept_root, native_architecture, require_tools, unpack

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
if [ -r "/mnt/dumpsys-$1-$2" ]; then exec cat "/mnt/dumpsys-$1-$2"; fi
if [ -r "/mnt/dumpsys-$1" ]; then exec cat "/mnt/dumpsys-$1"; fi
echo "Can't find service: $1"
"""
# Tools that a device has only if a test gives it one (tests/support/app_phone.py).
_GIVEN = ("am", "input", "logcat", "pm", "run-as", "wm")
_GIVEN_TOOL = """#!/system/bin/sh
tool=/mnt/tools/${0##*/}
if [ -r "$tool" ]; then exec /system/bin/sh "$tool" "$@"; fi
echo "${0##*/}: inaccessible or not found" >&2
exit 127
"""


@dataclass(frozen=True)
class Flavour:
    """An ABI by its names in Android, Debian and the GNU tools."""

    abi: str
    debian: str
    gnu: str

    @property
    def is_native(self) -> bool:
        return self.debian == native_architecture()


X86_64 = Flavour("x86_64", "amd64", "x86_64")
ARM64 = Flavour("arm64-v8a", "arm64", "aarch64")


def obtain_root(flavour: Flavour) -> Path:
    """The root folder for a flavour; made on first use (30 s) and kept.

    Raises:
        RootUnavailable: Something that it takes is missing here.
    """
    require_tools("ip")

    def make(unpacked: Path, root: Path) -> None:
        _unpack(flavour, unpacked)
        _assemble(flavour, unpacked, root)

    return kept_root(f"android-{flavour.abi}", Path(__file__), make)


def _unpack(flavour: Flavour, to: Path) -> None:
    """Fetches and unpacks adbd for this machine, and the tools for the flavour."""
    native = native_architecture()
    tools = [f"{name}:{flavour.debian}" for name in _TOOLS]
    unpack([[f"adbd:{native}"], tools], (native, flavour.debian), to)


def _assemble(flavour: Flavour, unpacked: Path, root: Path) -> None:
    native = unpacked / native_architecture()
    foreign = unpacked / flavour.debian
    for folder in ("system/bin", "data/local/tmp", "proc", "dev", "mnt", "etc"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("system/bin")
    (root / "sdcard").symlink_to("mnt/sdcard")
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
    for name in _GIVEN:
        _script(binaries / name, _GIVEN_TOOL)
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
