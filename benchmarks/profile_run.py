"""What `etdeploy profile` costs beside ExecuTorch's Inspector, for a program of 1,000 nodes.

    python benchmarks/profile_run.py [--nodes 3000]

Both read the trace and the ETRecord of one run in a new process; etdeploy without what its cache
has of the trace, and once more with it. Bound: at most 1.5 times the Inspector's own time.

The trace has two events for each node. With 1,000 nodes, the export takes 70 s of processor time
and each of the seven readings 20 s. The export of 3,000 takes 5 minutes: its time grows faster than
the number of nodes.

Not called profile.py: that is a module of Python's library, which others here would then import.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import compare, wall_s

ETDEPLOY = str(Path(sys.executable).with_name("etdeploy"))
_PAIRS = 3
_NODES_OF_A_STEP = 3
_MODEL = """
import torch

class Step(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) * 0.5 + 1.0

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.nn.ModuleList(Step() for _ in range(STEPS))

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x

def make():
    return Net().eval(), (torch.randn(16),)
"""
_RECIPE = """
model: {python: net.py:make}
export: {backend: portable}
benchmark: {runs: 1, iterations: 10, memory: false}
"""
_INSPECTOR = """
import sys
from executorch.devtools import Inspector
inspector = Inspector(etdump_path=sys.argv[1], etrecord=sys.argv[2])
assert len(inspector.event_blocks[0].events) >= 2 * int(sys.argv[3])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="of the program; 1000 by default")
    nodes: int = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "ETDEPLOY_CACHE_DIR": f"{folder}/cache", "XDG_DATA_HOME": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        run = _run(Path(folder), env, nodes)
        profile = [ETDEPLOY, "profile", str(run), "--json", "--quiet"]
        inspect = [sys.executable, "-W", "ignore", "-c", _INSPECTOR]
        inspect += [str(run / "etdump.etdp"), str(run / "etrecord.bin"), str(nodes)]

        def unread() -> float:
            shutil.rmtree(Path(folder) / "cache/traces", ignore_errors=True)
            return wall_s(profile, env)

        compare(
            f"etdeploy profile of {nodes:,} nodes, against the Inspector alone [s]",
            unread,
            lambda: wall_s(inspect, env),
            pairs=_PAIRS,
            warm_up=False,
        )
        print(f"  from the cache: {wall_s(profile, env):.3f} s")


def _run(folder: Path, env: dict[str, str], nodes: int) -> Path:
    """The folder of a measured run of the model."""
    steps = -(-nodes // _NODES_OF_A_STEP)
    (folder / "net.py").write_text(f"STEPS = {steps}\n{_MODEL}")
    recipe = folder / "recipe.yaml"
    recipe.write_text(_RECIPE)
    command = [ETDEPLOY, "run", "-r", str(recipe), "--json", "--quiet", "-o", str(folder / "out")]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return Path(json.loads(done.stdout)["folder"])


if __name__ == "__main__":
    main()
