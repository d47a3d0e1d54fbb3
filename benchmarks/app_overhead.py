"""The Android app's median against the runner's, of one program with the same libraries, in turn.

    python benchmarks/app_overhead.py [--threads 1 2] [--pairs 7]

The generated app runs under Robolectric, with the tests' stand-in for ExecuTorch's Java API over
the libraries of ExecuTorch's wheel, which the runner links, too. Needs Maven, a JDK and a C++
compiler. Bound: within 10 %, for a model of 2 ms and more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runner_overhead import etdeploy_json
from side_by_side import compare, wall_s

from tests.support.android_app import App, describe, missing_tools, obtain_tools, render

# For seconds after its start, Java's compiler takes a core from the model's second thread: after 20
# inferences, most with two threads took as long as with one.
WARMUP, ITERATIONS = 2000, 200
# A phone has cores left to draw with; here each look at the screen takes one from the model.
LOOK_MS = 1000
MODEL = """\
import torch


def make():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.ReLU()]
    for _ in range(4):
        layers += [torch.nn.Conv2d(32, 32, 3, 1, 1), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 3, 192, 192),)
"""
RECIPE = "model: {python: 'model.py:make'}\nexport: {backend: xnnpack}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=7)
    chosen = parser.parse_args()
    if missing := missing_tools():
        sys.exit(f"needs {missing}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        recipe = folder / "model.yaml"
        recipe.write_text(RECIPE)
        program = Path(str(etdeploy_json("export", "--recipe", str(recipe))["folder"]))
        built = etdeploy_json("build", "--recipe", str(recipe), "--output", str(folder / "runner"))
        runner = Path(str(built["path"])) / str(built["executable"])
        for threads in chosen.threads:
            compare(
                f"app against the runner [ms], threads {threads}",
                AppSide(folder, program, threads),
                RunnerSide(folder, runner, program, threads),
                chosen.pairs,
            )


class RunnerSide:
    """The runner's median in milliseconds."""

    def __init__(self, folder: Path, runner: Path, program: Path, threads: int) -> None:
        tensor = only_input(program)
        sizes = [str(size) for size in tensor["shape"]]
        inputs, self._results = folder / "inputs.txt", folder / "results.json"
        inputs.write_text(f"float32 {len(sizes)} {' '.join(sizes)} {program / tensor['path']}\n")
        words = {
            "program": program / "program.pte", "inputs": inputs, "results": self._results,
            "warmup": WARMUP, "iterations": ITERATIONS, "threads": threads,
        }  # fmt: skip
        self._argv = [str(runner), *(str(w) for k, v in words.items() for w in (f"--{k}", v))]

    def __call__(self) -> float:
        wall_s(self._argv)
        return statistics.median(json.loads(self._results.read_text())["samples_ms"])


class AppSide:
    """The app's."""

    def __init__(self, folder: Path, program: Path, threads: int) -> None:
        (folder / "shared").mkdir(exist_ok=True)
        self._tools, self._threads = obtain_tools(folder / "shared"), threads
        self._app = App(folder / f"app-{threads}", folder / f"built-{threads}")
        self._folders = (folder / f"run-{threads}-{n}" for n in itertools.count())
        render(self._app.project, "inference")
        self._app.compile(self._tools)
        payload, tensor = self._app.payload, only_input(program)
        payload.mkdir(parents=True, exist_ok=True)
        (payload / "program.pte").write_bytes((program / "program.pte").read_bytes())
        (payload / "input.bin").write_bytes((program / tensor["path"]).read_bytes())
        value = {
            "name": "", "atol": 1e-5, "kind": "Tensor", "value": None, "dtype": tensor["dtype"],
            "shape": tensor["shape"], "path": "input.bin",
        }  # fmt: skip
        size = {"name": "only", "inputs": [value], "expected": []}
        describe(payload, sizes=[size], warmup=WARMUP, iterations=ITERATIONS)

    def __call__(self) -> float:
        extras = {
            "run_id": "timed", "size": "only", "warmup": WARMUP, "iterations": ITERATIONS,
            "threads": self._threads,
        }  # fmt: skip
        scenario = {"extras": extras, "look_ms": LOOK_MS}
        screens = self._app.start(self._tools, next(self._folders), {"timed": scenario})
        return statistics.median(screens["timed"].results["samples_ms"])


def only_input(program: Path) -> dict[str, Any]:
    """The description of the program's input."""
    [tensor] = json.loads((program / "export.json").read_text())["inputs"]
    return dict(tensor)


if __name__ == "__main__":
    main()
