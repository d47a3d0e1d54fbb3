"""Six recipes in one run, against six runs of one recipe each, in turn.

    python benchmarks/many_jobs.py [PAIRS]

Bound: one run of six takes at most half of the time of six runs. The recipes are the bundled model
mlp with other quantization and seeds, measured on host. The cache has no program when either
begins, but it has the runners: a run of each recipe fills it before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from side_by_side import compare, wall_s

ETDEPLOY = str(Path(sys.executable).with_name("etdeploy"))
SCHEMES = ("none", "int8_static", "int8_dynamic", "8da4w")
VARIANTS = [*((scheme, 0) for scheme in SCHEMES), ("none", 1), ("8da4w", 1)]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "ETDEPLOY_CACHE_DIR": str(folder / "cache")}
        recipes = [write_recipe(folder, *variant) for variant in VARIANTS]
        run = [ETDEPLOY, "run", "--quiet", "--output", str(folder / "out")]

        def forget_programs() -> None:
            for kind in ("programs", "state"):
                shutil.rmtree(folder / "cache" / kind, ignore_errors=True)

        def together() -> float:
            forget_programs()
            return wall_s([*run, *(word for each in recipes for word in ("-r", each))], env)

        def one_by_one() -> float:
            forget_programs()
            return sum(wall_s([*run, "-r", each], env) for each in recipes)

        pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
        compare("six recipes in one run, against six runs [s]", together, one_by_one, pairs)


def write_recipe(folder: Path, scheme: str, seed: int) -> str:
    path = folder / f"{scheme}-{seed}.yaml"
    path.write_text(
        "model: {example: mlp}\n"
        f"export: {{backend: xnnpack, quantization: {scheme}, seed: {seed}}}\n"
        "benchmark: {iterations: 20, warmup: 3}\n"
    )
    return str(path)


if __name__ == "__main__":
    main()
