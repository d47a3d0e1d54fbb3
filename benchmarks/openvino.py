"""OpenVINO against XNNPACK on this machine, in turn: medians of each run's latencies.

    python benchmarks/openvino.py [PAIRS]

Twelve programs are exported first, into the cache; then every pair is measured anew, each run in
processes of its own. Both compute what the scheme says: `none` in 32-bit floats.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import compare

_EXAMPLES = ("mlp", "convnet", "encoder")
_SCHEMES = ("none", "int8_static")
_BACKENDS = ("openvino", "xnnpack")
_PAIRS = 5
_RECIPE = """\
model: {{example: {example}}}
export: {{backend: {backend}, quantization: {scheme}}}
benchmark: {{warmup: 10, iterations: 100, memory: false, profile: false}}
"""


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        combinations = [(e, s, b) for e in _EXAMPLES for s in _SCHEMES for b in _BACKENDS]
        recipes = {key: _recipe(folder, *key) for key in combinations}
        _etdeploy("run", *(word for path in recipes.values() for word in ("--recipe", str(path))))
        for example in _EXAMPLES:
            for scheme in _SCHEMES:
                ours, theirs = (recipes[example, scheme, backend] for backend in _BACKENDS)
                compare(
                    f"{example} {scheme}, ms with OpenVINO against XNNPACK",
                    lambda path=ours: _median_ms(path),
                    lambda path=theirs: _median_ms(path),
                    pairs,
                    warm_up=False,
                )


def _recipe(folder: Path, example: str, scheme: str, backend: str) -> Path:
    path = folder / f"{example}-{scheme}-{backend}.yaml"
    path.write_text(_RECIPE.format(example=example, scheme=scheme, backend=backend))
    return path


def _median_ms(recipe: Path) -> float:
    record = json.loads(_etdeploy("bench", "--recipe", str(recipe), "--json"))
    return float(record["workload"]["latency_ms"]["median"])


def _etdeploy(verb: str, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as output:
        argv = [sys.executable, "-m", "etdeploy", verb, *arguments, "--output", output]
        done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else _PAIRS)
