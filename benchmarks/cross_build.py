"""The linux-aarch64 runner, built from a warm cache of wheels.

    python benchmarks/cross_build.py

Bound: 6 s for `etdeploy build --target linux-aarch64` when the program and the wheel are cached
and the runner is not. ccache is switched off, so that the compiler really works.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from side_by_side import wall_s

ETDEPLOY = str(Path(sys.executable).with_name("etdeploy"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "ETDEPLOY_CACHE_DIR": f"{folder}/cache", "CCACHE_DISABLE": "1"}
        build = [ETDEPLOY, "build", "--target", "linux-aarch64"]
        wall_s(build, env)
        seconds = []
        for _ in range(5):
            shutil.rmtree(f"{folder}/cache/runners")
            seconds.append(wall_s(build, env))
        print(
            f"cross-compiled runner, warm wheels: median {statistics.median(seconds):.2f} s "
            f"of {', '.join(f'{s:.2f}' for s in seconds)}"
        )


if __name__ == "__main__":
    main()
