"""Programs of etdeploy against those of ExecuTorch's own export, onnxruntime and OpenVINO.

    python benchmarks/programs.py [--models vit_tiny resnet18] [--schemes fp32 int8_static]
        [--threads 1 2] [--rounds 5] [--sides official etdeploy] [--json FILE]
    python benchmarks/programs.py --read FILE.json... [--picture FILE.svg]
    python benchmarks/programs.py --held-out --variant plain export.rewrites=none
    python benchmarks/programs.py --further --sides official etdeploy

Needs, besides the extra `export`, torchvision==0.28.* and transformers==5.23.*; for the side
onnxruntime also onnxruntime, onnx and onnxscript; for openvino also openvino==2025.4.*, onnx and
onnxscript. A side whose packages are not installed is left out, and the output says so.

Random weights in true shapes cost as much as trained ones; what they say of accuracy is whether a
program computes what the module does. All sides take the same inputs and are compared with the
module itself in 32-bit floats.

* official: `to_edge_transform_and_lower(torch.export.export(...), [XnnpackPartitioner()])`, and
  XNNPACKQuantizer or torchao before it, as ExecuTorch's documentation writes them.
* etdeploy: `etdeploy export`. `--variant NAME KEY=VALUE...` adds a side with other values of the
  recipe; `--sides` does not leave it out.
* onnxruntime, openvino: what torch.onnx exports, on the CPU, in 32-bit floats only.

Programs of ExecuTorch run in one and the same runner. In each round, every side is started once and
infers for `--seconds`; the order turns round from one to the next. Within a round, the time of a
side is the median of its inferences, and a ratio is that of two such times. What is shown is the
median of the ratios of all rounds with their range. Beside it stand the same of the *least* times,
which other work moves less, and of *processor* time. That is what an inference takes on one thread
where the machine is so busy that no inference ends undisturbed; on several threads it counts those
that wait, too. `--by` says which of them the table has.

*Outside* is the share of the time that is not in a delegate, on one thread, of a start with a
tracer. What others export is kept in `--work` for the next run, what etdeploy exports in its cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from programs_picture import picture
from programs_sides import (
    ONNX_SIDES,
    SCHEMES,
    Agreement,
    Eager,
    Etdeploy,
    FailedError,
    Official,
    Onnx,
    Program,
    Side,
    Workshop,
    agreement,
    build_runner,
    versions,
)
from programs_table import BY, Measured, Row, block, table

os.environ.setdefault("ETDEPLOY_STORE", "none")  # no part of the user's history

_SIDES = ("official", "etdeploy", *ONNX_SIDES)
_LEAST_ITERATIONS, _MOST_ITERATIONS = 5, 500


def main() -> None:
    given = _arguments().parse_args()
    if given.read:
        _shown([row for path in given.read for row in _read(path)], given)
        return
    folder = given.work or Path(tempfile.gettempdir()) / "etdeploy-programs"
    models = _models(given)
    rows: list[Row] = []
    try:
        sides = _sides(given, Workshop(folder), build_runner(folder / "runner"))
    except FailedError as error:
        sys.exit(f"the runner cannot be built: {error}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for model in models:
        for row in _rows_of(model, sides, Workshop(folder), given):
            print("\n".join(block(row)), flush=True)
            rows.append(row)
            if given.json:
                _write(given.json, rows, given)
    _shown(rows, given)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", metavar="NAME", help="those of the list by default")
    add("--held-out", action="store_true", help="the held-out models in place of the listed ones")
    add("--further", action="store_true", help="the models of programs_further.py")
    add("--schemes", nargs="+", choices=SCHEMES, default=["fp32"])
    add("--threads", nargs="+", type=int, default=[1, 2])
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=1.5, help="of the timed inferences of a start")
    add(
        "--by", choices=BY, default="median",
        help="what of a start's inferences the table and its ratios are of; see above",
    )  # fmt: skip
    add("--sides", nargs="+", choices=_SIDES, default=_SIDES)
    add(
        "--variant", nargs="+", action="append", default=[], metavar="WORD",
        help="a name and values of the recipe, KEY=VALUE, of another side of etdeploy",
    )  # fmt: skip
    add("--work", type=Path, help="where programs are kept; by default in the temporary folder")
    add(
        "--read", nargs="+", type=Path, metavar="FILE",
        help="measure nothing, and show what --json has written",
    )  # fmt: skip
    add("--picture", type=Path, metavar="FILE", help="draw the first --threads as SVG")
    add("--json", type=Path, metavar="FILE", help="write every round's times to this file")
    return parser


def _models(given: argparse.Namespace) -> list[str]:
    from programs_further import FURTHER, HELD_OUT, LISTED, every

    known = every()
    if unknown := [name for name in given.models or () if name not in known]:
        sys.exit(f"no model {', '.join(unknown)}; there are {', '.join(known)}")
    return given.models or list(
        HELD_OUT if given.held_out else FURTHER if given.further else LISTED
    )


def _sides(given: argparse.Namespace, workshop: Workshop, runner: Path) -> list[Side]:
    # By distribution: the benchmark openvino.py beside this file would be found as a module.
    sides, installed = list[Side](), versions(("onnx", "onnxscript", *ONNX_SIDES))
    for name in given.sides:
        if missing := [each for each in _needs(name) if each not in installed]:
            print(f"{name} is left out: not installed: {', '.join(missing)}")
        elif name in ONNX_SIDES:
            sides.append(Onnx(workshop, name))
        else:
            kind = Official if name == "official" else Etdeploy
            sides.append(kind(workshop, runner))
    for name, *sets in given.variant:
        if name in [side.name for side in sides]:
            sys.exit(f"--variant {name}: there is a side of that name; choose another")
        sides.append(Etdeploy(workshop, runner, name, tuple(sets)))
    return sides


def _needs(side: str) -> tuple[str, ...]:
    return (side, "onnx", "onnxscript") if side in ONNX_SIDES else ()


def _rows_of(
    model: str, sides: Sequence[Side], workshop: Workshop, given: argparse.Namespace
) -> Iterator[Row]:
    for scheme in given.schemes:
        programs, failed = _programs(model, scheme, sides)
        if not programs:
            yield Row(model, scheme, given.threads[0], {n: Measured(w) for n, w in failed.items()})
            continue
        eager = workshop.eager(model)
        outside = {name: _outside(program) for name, program in programs.items()}
        for threads in given.threads:
            load = os.getloadavg()[0]
            measured = {n: Measured(why) for n, why in failed.items()}
            measured |= _measure(programs, eager, threads, given)
            for name, share in outside.items():
                measured[name].outside = share
            order = {side.name: measured[side.name] for side in sides if side.name in measured}
            yield Row(model, scheme, threads, order, load)


def _programs(
    model: str, scheme: str, sides: Sequence[Side]
) -> tuple[dict[str, Program], dict[str, str]]:
    """The programs that could be made, by the side's name, and why the others could not."""
    programs, failed = dict[str, Program](), dict[str, str]()
    for side in sides:
        if scheme in side.schemes:
            try:
                programs[side.name] = side.program(model, scheme)
            except FailedError as error:
                failed[side.name] = str(error)
    return programs, failed


def _outside(program: Program) -> float | None:
    try:
        return program.outside()
    except FailedError:  # said when it is timed
        return None


def _measure(
    programs: Mapping[str, Program], eager: Eager, threads: int, given: argparse.Namespace
) -> dict[str, Measured]:
    found = {name: _tried(p, eager, threads, given.seconds) for name, p in programs.items()}
    for number in range(given.rounds):
        names = list(programs) if number % 2 == 0 else list(programs)[::-1]
        for name in names:
            side = found[name]
            if not side.failed:
                _time(side, programs[name], threads)
    return found


def _tried(program: Program, eager: Eager, threads: int, seconds: float) -> Measured:
    """A first start, for its output and for how many inferences fit into the time."""
    try:
        first = program.start(threads, 1, 3)
    except FailedError as error:
        return Measured(str(error))
    fitting = round(seconds * 1000 / min(first.samples_ms))
    iterations = min(_MOST_ITERATIONS, max(_LEAST_ITERATIONS, fitting))
    return Measured(iterations=iterations, agreement=agreement(first.output, eager.output))


def _time(side: Measured, program: Program, threads: int) -> None:
    """A round's start of a side."""
    warmup = max(1, side.iterations // 5)
    try:
        start = program.start(threads, warmup, side.iterations)
    except FailedError as error:
        side.failed = str(error)
        return
    side.median_ms.append(statistics.median(start.samples_ms))
    side.min_ms.append(min(start.samples_ms))
    side.processor_ms.append(start.processor_ms)


def _shown(rows: Sequence[Row], given: argparse.Namespace) -> None:
    sides = list(dict.fromkeys(name for row in rows for name in row.sides))
    print("\n" + "\n".join(table(rows, sides, given.by)))
    if given.picture:
        lines = picture(rows, "etdeploy", given.by, given.threads[0])
        given.picture.write_text("\n".join(lines) + "\n")


def _read(path: Path) -> list[Row]:
    """The rows of a file of --json."""
    rows = []
    for row in json.loads(path.read_text())["rows"]:
        sides = {
            name: Measured(**{**side, "agreement": _agreement(side["agreement"])})
            for name, side in row["sides"].items()
        }
        rows.append(Row(**{**row, "sides": sides}))
    return rows


def _agreement(values: Mapping[str, float] | None) -> Agreement | None:
    return None if values is None else Agreement(**values)


def _write(path: Path, rows: Sequence[Row], given: argparse.Namespace) -> None:
    content = {
        "machine": platform.processor() or platform.machine(),
        "processors": os.cpu_count(),
        "versions": versions(),
        "rounds": given.rounds,
        "variants": given.variant,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
