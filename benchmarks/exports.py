"""What six exports cost that share one preloaded process, against six processes of their own.

    python benchmarks/exports.py [--at-once N] [--pairs N]

The example mlp with each quantization that XNNPACK takes, two of them with another seed. Every
export starts from an empty cache. The programs of both ways have to be the same, byte by byte.
Bound: sharing takes at most half of the time. Exports only: no runner is built, nothing is run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from side_by_side import compare

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import silent
from etdeploy.export.derive import export_spec
from etdeploy.export.preload import OWN_PROCESSES, preloaded_exports
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.model import Recipe

_VARIANTS = (
    ("none", 0), ("int8_static", 0), ("int8_dynamic", 0), ("8da4w", 0),
    ("none", 1), ("int8_static", 1),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--at-once", type=int, default=1, help="exports that run beside each other")
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    digests: list[list[str]] = []

    def timed(shared: bool) -> float:
        started = time.perf_counter()
        digests.append(_export(shared, given.at_once))
        return time.perf_counter() - started

    specs = f"{len(_VARIANTS)} exports in one preloaded process, against processes of their own"
    compare(f"{specs} [s]", lambda: timed(True), lambda: timed(False), given.pairs, warm_up=False)
    if any(programs != digests[0] for programs in digests):
        sys.exit("the programs differ")


def _export(shared: bool, at_once: int) -> list[str]:
    specs = [_spec(*variant) for variant in _VARIANTS]
    exporters = preloaded_exports(specs) if shared else nullcontext(OWN_PROCESSES)
    with (
        tempfile.TemporaryDirectory() as folder,
        exporters as exporter,
        ThreadPoolExecutor(at_once) as threads,
    ):
        root = Path(folder)
        jobs = [
            threads.submit(
                export_program, spec, Workspace(root / "cache"), silent, root / f"{i}.log", exporter
            )
            for i, spec in enumerate(specs)
        ]
        digests = [job.result().sha256 for job in jobs]
        _require_sharing(shared, sorted(root.glob("*.log")))
    return digests


def _require_sharing(shared: bool, logs: Sequence[Path]) -> None:
    if shared and any("gets a process of its own" in log.read_text() for log in logs):
        sys.exit("an export did not share the process")


def _spec(quantization: str, seed: int) -> ExportSpec:
    export = {"backend": "xnnpack", "quantization": quantization, "seed": seed}
    return export_spec(Recipe.model_validate({"model": {"example": "mlp"}, "export": export}))


if __name__ == "__main__":
    main()
