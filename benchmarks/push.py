"""A verified push of a large file to a real adbd, against a bare `adb push` of it, in turn.

    python benchmarks/push.py          (as root; makes the test device of the tests)

`adb push` does not verify. On loopback everything competes for this machine's processors, also the
device's hashing; on a link as fast as a phone's (`tc` of iproute2 makes one) it does not.

Bounds: a verified push is as fast as a bare `adb push` (ratio 1) on a link. `adb push` takes 4 to
6 ms besides its bytes, whatever the size; a push, on a device with an empty store, a shell and 2
tools before the first byte, and 5 tools after the last one (the end of the digest, the moves, the
stamp). In between the link is saturated, so what these take is what is missing from 1. One that is
verified while it travels is at most 3 % slower than one that is verified afterwards; after a cut at
90 % of 1 GB the next push sends at most one part more than what is missing; an unchanged push again
takes less than 0.3 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from side_by_side import compare, wall_s

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import Bundle, BundleFile, Device, ProcessLaunch
from etdeploy.devices.registry import open_device
from etdeploy.devices.remote import store
from tests.support.adbd import AdbServer, AndroidRoot, running_adb_server, running_android

SIZE_BYTES = 200_000_000
CUT_BYTES = 1_000_000_000
SMALL_BYTES = 1000
LINK = "1600mbit"
ON_DEVICE = "/data/local/tmp/plain"


class CutError(Exception):
    """Ends a push."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_android(size_mib=1300) as device:
        os.environ["HOME"] = folder
        bundle = bundle_of(Path(folder) / "payload", SIZE_BYTES)
        large = bundle_of(Path(folder) / "large", CUT_BYTES)
        small = bundle_of(Path(folder) / "small", SMALL_BYTES)
        with running_adb_server(Path(folder)) as server:
            server.connect(device)
            for name, port in (("directly", 9), ("through the adb server", server.port)):
                os.environ["ANDROID_ADB_SERVER_PORT"] = str(port)
                print(f"{name}, {SMALL_BYTES} bytes")
                beside(device, small, server)
                print(f"{name}, on loopback")
                measure(device, bundle, server)
                print(f"{name}, on a link of {LINK}")
                with link(device):
                    measure(device, bundle, server)
                print(f"{name}, cut at 90 % of {CUT_BYTES / 1e6:.0f} MB")
                cut(device, large)


def bundle_of(payload: Path, size_bytes: int) -> Bundle:
    payload.write_bytes(os.urandom(size_bytes))
    file = BundleFile(
        source=str(payload),
        path="payload",
        sha256=sha256_file(payload),
        size_bytes=size_bytes,
    )
    return Bundle(files=(file,), launch=ProcessLaunch(argv=("payload",)))


@contextmanager
def link(device: AndroidRoot) -> Iterator[None]:
    """Bounds the speed of what goes to the device."""
    limit = ("tbf", "rate", LINK, "burst", "1mb", "latency", "100ms")
    subprocess.run(["tc", "qdisc", "add", "dev", device.link, "root", *limit], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", device.link, "root"], check=True)


def push_anew(opened: Device, bundle: Bundle) -> float:
    opened.clean()
    return opened.push(bundle).seconds


def beside(device: AndroidRoot, bundle: Bundle, server: AdbServer) -> None:
    """Compares a push with `adb push`."""
    adb = ["adb", "-s", device.serial]

    def adb_push() -> float:
        wall_s([*adb, "shell", "rm", "-f", ON_DEVICE], server.environment)
        return wall_s([*adb, "push", bundle.files[0].source, ON_DEVICE], server.environment)

    with closing(open_device(device.spec)) as opened:
        compare("  adb push / our verified push [s]", adb_push, lambda: push_anew(opened, bundle))
        opened.clean()


def measure(device: AndroidRoot, bundle: Bundle, server: AdbServer) -> None:
    beside(device, bundle, server)
    opened = open_device(device.spec)

    def verified_afterwards() -> float:
        store.PART_BYTES, usual = SIZE_BYTES, store.PART_BYTES
        try:
            return push_anew(opened, bundle)
        finally:
            store.PART_BYTES = usual

    compare(
        "  verified afterwards / while it travels [s]",
        verified_afterwards,
        lambda: push_anew(opened, bundle),
    )
    again = min(opened.push(bundle).seconds for _ in range(5))
    print(f"  unchanged push again: {again:.3f} s")
    opened.clean()
    opened.close()


def cut(device: AndroidRoot, bundle: Bundle) -> None:
    """Prints what the push after an interrupted one sends."""
    opened = open_device(device.spec)

    def at_90_percent(text: str, fraction: float | None = None) -> None:
        if fraction and fraction > 0.9:
            raise CutError(text)

    with suppress(CutError):
        opened.push(bundle, at_90_percent)
    partial = device.path(f"/data/local/tmp/etdeploy/partial/{bundle.files[0].sha256}")
    missing = CUT_BYTES - partial.stat().st_size
    report = opened.push(bundle)
    print(
        f"  {missing} bytes were missing; sent {report.pushed_bytes}: "
        f"{(report.pushed_bytes - missing) / store.PART_BYTES:.2f} parts more, "
        f"in {report.seconds:.2f} s"
    )
    opened.clean()
    opened.close()


if __name__ == "__main__":
    main()
