"""A push of 200 MB to a board over ssh, against `scp` of the same file, in turn.

    python benchmarks/push_ssh.py      (with openssh-server; makes the test board of the tests)

Bounds: at least 0.8 of `scp`; an unchanged push again in less than 0.3 s. `scp` does not verify:
the transfer alone is compared with it, and the whole push with `scp` followed by `sha256sum` there.
`scp` logs in anew each time, as its user does; etdeploy has the connection already.
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
from tests.support.sshd import SshBoard, running_board

SIZE_BYTES = 200_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_board(Path(folder)) as board:
        os.environ["ETDEPLOY_SSH_CONFIG"] = str(board.config)
        payload = board.folder / "payload"
        payload.write_bytes(os.urandom(SIZE_BYTES))
        measure(board, payload)


def measure(board: SshBoard, payload: Path) -> None:
    host = board.spec.partition(":")[2]
    file = BundleFile(
        source=str(payload), path="payload", sha256=sha256_file(payload), size_bytes=SIZE_BYTES
    )
    bundle = Bundle(files=(file,), launch=ProcessLaunch(argv=("payload",)))
    opened = open_device(board.spec)

    def push_anew() -> PushReport:
        opened.clean()
        return opened.push(bundle)

    def run(*argv: str) -> float:
        started = time.perf_counter()
        subprocess.run([argv[0], "-F", str(board.config), *argv[1:]], check=True,
                       capture_output=True)  # fmt: skip
        return time.perf_counter() - started

    def scp() -> float:
        run("ssh", host, "rm -f plain")
        return run("scp", str(payload), f"{host}:plain")

    def transfer() -> float:
        report = push_anew()
        return report.seconds - report.verify_seconds

    compare("  scp / our transfer [s]", scp, transfer)
    compare(
        "  scp and sha256sum / our whole push [s]",
        lambda: scp() + run("ssh", host, "sha256sum plain"),
        lambda: push_anew().seconds,
    )
    again = min(opened.push(bundle).seconds for _ in range(5))
    print(f"  unchanged push again: {again:.3f} s")
    opened.clean()
    opened.close()


if __name__ == "__main__":
    main()
