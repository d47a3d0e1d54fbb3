"""A push of 200 MB to a real adbd, against `adb push` of the same file, in turn.

    python benchmarks/push.py          (as root; makes the test device of the tests)

Bounds: at least 0.8 of `adb push`; an unchanged push again in less than 0.3 s. `adb push` does not
verify: the transfer alone is compared with it, and the whole push with `adb push` followed by
`sha256sum` on the device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import Bundle, BundleFile, ProcessLaunch, PushReport
from etdeploy.devices.registry import open_device
from tests.support.adbd import AdbServer, AndroidRoot, running_adb_server, running_android

SIZE_BYTES = 200_000_000
ON_DEVICE = "/data/local/tmp/plain"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_android(size_mib=700) as device:
        os.environ["HOME"] = folder
        payload = Path(folder) / "payload"
        payload.write_bytes(os.urandom(SIZE_BYTES))
        bundle = bundle_of(payload)
        with running_adb_server(Path(folder)) as server:
            server.connect(device)
            print("directly, without an adb server")
            os.environ["ANDROID_ADB_SERVER_PORT"] = "9"
            measure(device, bundle, server, payload)
            print("through the adb server")
            os.environ["ANDROID_ADB_SERVER_PORT"] = str(server.port)
            measure(device, bundle, server, payload)


def bundle_of(payload: Path) -> Bundle:
    file = BundleFile(
        source=str(payload),
        path="payload",
        sha256=sha256_file(payload),
        size_bytes=SIZE_BYTES,
    )
    return Bundle(files=(file,), launch=ProcessLaunch(argv=("payload",)))


def measure(device: AndroidRoot, bundle: Bundle, server: AdbServer, payload: Path) -> None:
    opened = open_device(device.spec)

    def push_anew() -> PushReport:
        opened.clean()
        return opened.push(bundle)

    def adb(*arguments: str) -> float:
        started = time.perf_counter()
        subprocess.run(
            ["adb", "-s", device.serial, *arguments],
            env=server.environment,
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - started

    def adb_push() -> float:
        adb("shell", "rm", "-f", ON_DEVICE)
        return adb("push", str(payload), ON_DEVICE)

    def transfer() -> float:
        report = push_anew()
        return report.seconds - report.verify_seconds

    compare("  adb push / our transfer [s]", adb_push, transfer)
    compare(
        "  adb push and sha256sum / our whole push [s]",
        lambda: adb_push() + adb("shell", "sha256sum", ON_DEVICE),
        lambda: push_anew().seconds,
    )
    again = min(opened.push(bundle).seconds for _ in range(5))
    print(f"  unchanged push again: {again:.3f} s")
    opened.clean()
    opened.close()


if __name__ == "__main__":
    main()
