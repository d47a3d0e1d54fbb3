"""Runs the export worker for many specs, sharing the seconds that its first one takes.

    python -m tests.support.export_batch JOBS.json

The file lists pairs of a spec's path and a folder. The worker's own `main` does each in a fork of
this process; its output goes to `log.txt` beside the spec, its exit code to `exit.txt`. Two run
side by side.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import tests.support.forked_imports  # noqa: F401

_TOGETHER = 2


def main(jobs_path: Path) -> None:
    running: dict[int, Path] = {}
    for spec, folder in json.loads(jobs_path.read_text()):
        if len(running) == _TOGETHER:
            _wait_for_one(running)
        child = os.fork()
        if child == 0:
            _work(Path(spec), Path(folder))
        running[child] = Path(spec)
    while running:
        _wait_for_one(running)


def _work(spec: Path, folder: Path) -> None:
    from etdeploy.export.worker.__main__ import main as worker

    log = os.open(spec.with_name("log.txt"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Each fork loads its own kernels' threads; one is enough for small models.
    import torch

    torch.set_num_threads(1)
    os._exit(worker([str(spec), str(folder)]))


def _wait_for_one(running: dict[int, Path]) -> None:
    child, status = os.wait()
    spec = running.pop(child)
    spec.with_name("exit.txt").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
