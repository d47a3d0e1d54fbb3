"""Runs the export worker for many specs, sharing the seconds that its first one takes.

    python -m tests.support.export_batch JOBS.json

The file lists pairs of a spec's path and a folder. The worker's own `main` does each in a fork of
this process, after a first lowering; its output goes to `log.txt` beside the spec, its exit code to
`exit.txt`. Two run side by side.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_TOGETHER = 2


def main(jobs_path: Path) -> None:
    _warm_up()
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


def _warm_up() -> None:
    """Lowers a tiny model: the first lowering imports, and traces XNNPACK's patterns, for long."""
    import torch
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    traced = torch.export.export(torch.nn.Linear(4, 4), (torch.zeros(1, 4),))
    to_edge_transform_and_lower(
        traced, partitioner=[XnnpackPartitioner()], generate_etrecord=True
    ).to_executorch()


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
