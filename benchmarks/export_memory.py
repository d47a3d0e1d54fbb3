"""The memory of an export whose weights do not fit, against what was expected.

    python benchmarks/export_memory.py
    python benchmarks/export_memory.py --shape 4 2048 8192 8000 --shape 4 1024 4096 64000

Llamas with random weights in bfloat16, exported with 8da4w for XNNPACK in a control group whose
limit is what the libraries take and half of the weights. Bounds: each export succeeds, and its peak
is within 15 % of what was expected. It needs the right to make control groups, as root has it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from etdeploy.export.hf.memory import LIBRARIES_BYTES
from tests.support.limited_memory import Shape, export_limited, limited_memory, save_large

_BOUND = 0.15
_MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ("LAYERS", "HIDDEN", "INNER", "VOCABULARY")
    parser.add_argument("--shape", action="append", nargs=4, type=int, metavar=names)
    parser.add_argument("--limit-mib", type=int, help="of the group, instead of that above")
    given = parser.parse_args()
    print("| weights [MiB] | limit [MiB] | expected [MiB] | peak [MiB] | ratio | time [s] |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    shapes = [Shape(*each) for each in given.shape or ()] or [Shape()]
    ratios = [_measure(shape, given.limit_mib) for shape in shapes]
    if not all(1 - _BOUND <= ratio <= 1 + _BOUND for ratio in ratios):
        sys.exit("a peak is not as expected")


def _measure(shape: Shape, limit_mib: int | None) -> float:
    build = Path("build").absolute()  # which git ignores; /tmp may be memory
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as name:
        folder = Path(name)
        checkpoint = save_large(folder / "model", shape, sys.executable)
        weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
        limit = limit_mib * _MIB if limit_mib else LIBRARIES_BYTES + weights // 2
        with limited_memory(limit) as group:
            if group is None:
                sys.exit("this process may not make a control group")
            found = export_limited(checkpoint, folder / "export", sys.executable, group)
    expected, peak = found.memory["expected_bytes"], found.memory["peak_bytes"]
    cells = (weights, limit, expected, peak)
    row = " | ".join(str(round(each / _MIB)) for each in cells)
    print(f"| {row} | {peak / expected:.2f} | {found.seconds:.0f} |", flush=True)
    return float(peak / expected)


if __name__ == "__main__":
    main()
