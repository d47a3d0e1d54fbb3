"""What an export takes without the work that ExecuTorch's lowering repeats, against with it.

    python benchmarks/lowering.py
    python benchmarks/lowering.py --models vit_tiny --schemes none int8_dynamic --backend vulkan

Models of `programs.py`, exported whole, each time in a new process that has torch and ExecuTorch
imported. Both programs have to be the same, byte by byte. Nothing is run on a device.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("ETDEPLOY_STORE", "none")  # no part of the user's history

# Before the processes are forked, so that none of them is timed importing it.
import executorch.backends.xnnpack.partition.xnnpack_partitioner
import executorch.backends.xnnpack.quantizer.xnnpack_quantizer  # noqa: F401
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from programs_further import every
from programs_sides import factory

from etdeploy.export.derive import export_spec
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.xnnpack_layouts import NeededPasses
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.lowering import lower
from etdeploy.export.worker.pipeline import run
from etdeploy.program.folder import EXPORT_INFO, PROGRAM_FILE
from etdeploy.recipe.model import Recipe

_MODELS = ("resnet18", "mobilenet_v3_small", "vit_tiny")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=_MODELS, metavar="NAME")
    parser.add_argument("--schemes", nargs="+", default=["none"])
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--pairs", type=int, default=1)
    given = parser.parse_args()
    if unknown := [name for name in given.models if name not in every()]:
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(every())}")
    print("| model | scheme | repeating [s] | not [s] | ratio | traces, lowers and counts [s] |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for model in given.models:
        for scheme in given.schemes:
            print(_row(model, scheme, given.backend, given.pairs), flush=True)


def _row(model: str, scheme: str, backend: str, pairs: int) -> str:
    spec = _spec(model, scheme, backend)
    told = [
        {repeats: _in_a_child(spec, repeats) for repeats in (True, False)} for _ in range(pairs)
    ]
    if any(each[True]["digest"] != each[False]["digest"] for each in told):
        sys.exit(f"{model} {scheme}: the programs differ")
    with_s, without_s = (median(each[way]["s"] for each in told) for way in (True, False))
    ratio = median(each[True]["s"] / each[False]["s"] for each in told)
    steps = ", ".join(
        f"{median(each[True]['steps'].get(name, 0.0) for each in told):.0f} to "
        f"{median(each[False]['steps'].get(name, 0.0) for each in told):.0f}"
        for name in ("export", "lower", "gain")
    )
    return f"| {model} | {scheme} | {with_s:.0f} | {without_s:.0f} | {ratio:.2f} | {steps} |"


def _spec(model: str, scheme: str, backend: str) -> ExportSpec:
    export = {"backend": backend, "quantization": scheme}
    recipe = {"model": {"python": factory(model)}, "export": export}
    return export_spec(Recipe.model_validate(recipe), arch="x86_64")


def _in_a_child(spec: ExportSpec, repeats: bool) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_export, args=(spec, repeats, theirs))
    child.start()
    theirs.close()
    try:
        told: dict[str, Any] = ours.recv()
    except EOFError:
        sys.exit(f"{spec.source} {spec.quantization}: the export failed")
    child.join()
    return told


def _export(spec: ExportSpec, repeats: bool, told: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    if repeats:
        lower.shortens = lambda _: False
        NeededPasses.__init__ = XNNPACKPassManager.__init__  # type: ignore[method-assign]
        NeededPasses.transform = XNNPACKPassManager.transform
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run(spec, Path(folder), lambda *_: None, FileRecorder())
        seconds = time.perf_counter() - started
        digest = hashlib.sha256((Path(folder) / PROGRAM_FILE).read_bytes()).hexdigest()
        steps = json.loads((Path(folder) / EXPORT_INFO).read_text())["seconds"]
    told.send({"s": seconds, "digest": digest, "steps": steps})


if __name__ == "__main__":
    main()
