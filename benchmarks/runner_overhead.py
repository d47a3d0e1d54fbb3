"""The runner's median against a bare loop over Module::forward of the same program, in turn.

    python benchmarks/runner_overhead.py

Bound: within 3 %. One processor for both, since on a shared machine a second thread measures the
neighbours: run it under `taskset -c 0`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from side_by_side import compare, wall_s

BIN = Path(sys.executable).parent
SOURCE = Path(__file__).with_name("bare_loop")
WARMUP, ITERATIONS = 20, 200


def etdeploy_json(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [BIN / "etdeploy", *arguments, "--json", "--quiet"],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def build_bare_loop(folder: Path) -> str:
    executorch = find_spec("executorch")
    assert executorch is not None
    assert executorch.submodule_search_locations is not None
    prefix = next(iter(executorch.submodule_search_locations))
    wall_s(
        [
            str(BIN / "cmake"),
            "-S",
            str(SOURCE),
            "-B",
            str(folder),
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_PREFIX_PATH={prefix}",
        ]
    )
    wall_s([str(BIN / "ninja"), "-C", str(folder)])
    return str(folder / "bare_loop")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bare = build_bare_loop(folder / "build")
        for recipe in ("xnnpack", "portable"):
            program = Path(str(etdeploy_json("export", "--recipe", recipe)["folder"]))
            runner = etdeploy_json("build", "--recipe", recipe, "--output", str(folder / recipe))
            executable = Path(str(runner["path"])) / str(runner["executable"])
            measure_pair(recipe, bare, executable, program, folder)


def measure_pair(name: str, bare: str, runner: Path, program: Path, folder: Path) -> None:
    provenance = json.loads((program / "export.json").read_text())
    tensor = provenance["inputs"][0]
    assert tensor["dtype"] == "float32"
    sizes = [str(size) for size in tensor["shape"]]
    inputs, results = folder / "inputs.txt", folder / "results.json"
    data = program / tensor["path"]
    inputs.write_text(f"float32 {len(sizes)} {' '.join(sizes)} {data}\n")
    pte = str(program / "program.pte")

    def with_runner() -> float:
        wall_s(
            [
                str(runner),
                "--program",
                pte,
                "--inputs",
                str(inputs),
                "--results",
                str(results),
                "--warmup",
                str(WARMUP),
                "--iterations",
                str(ITERATIONS),
            ]
        )
        return statistics.median(json.loads(results.read_text())["samples_ms"])

    def with_bare_loop() -> float:
        done = subprocess.run(
            [bare, pte, str(data), str(WARMUP), str(ITERATIONS), *sizes],
            text=True,
            capture_output=True,
            check=True,
            env={**os.environ},
        )
        return float(done.stdout)

    compare(f"{name}: runner against a bare loop [ms]", with_runner, with_bare_loop, pairs=11)


if __name__ == "__main__":
    main()
