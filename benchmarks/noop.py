"""What a run with nothing to do costs, and what the help costs.

    python benchmarks/noop.py

Bounds: no-op run 0.8 s, and less than 0.3 s above the interpreter with `import doit`;
`etdeploy --help` at most twice `python -c "import click"`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from side_by_side import compare, wall_s

ETDEPLOY = str(Path(sys.executable).with_name("etdeploy"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "ETDEPLOY_CACHE_DIR": f"{folder}/cache"}
        # Users' machines keep compiled modules; without them every start compiles anew.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        run = [ETDEPLOY, "run", "--output", f"{folder}/out", "--set", "benchmark.iterations=20"]
        wall_s(run, env)
        noop, engine, _ = compare(
            "run with nothing to do, against `import doit` [s]",
            lambda: wall_s(run, env),
            lambda: wall_s([sys.executable, "-c", "import doit.doit_cmd"], env),
        )
        print(f"  above the interpreter and doit: {noop - engine:.3f} s")
        compare(
            "etdeploy --help, against `import click` [s]",
            lambda: wall_s([ETDEPLOY, "--help"], env),
            lambda: wall_s([sys.executable, "-c", "import click"], env),
        )


if __name__ == "__main__":
    main()
