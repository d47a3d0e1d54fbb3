#!/usr/bin/env python3
"""Accuracy of quantization schemes with trained weights and real inputs, against 32-bit floats.

    python benchmarks/accuracy.py [--families vad mtcnn] [--schemes xnnpack/int8_static]
    python benchmarks/accuracy.py --write docs/accuracy.md

Prints a Markdown table for each family of tests/support/real, or `--json`; `--write` replaces the
tables of a file. Needs the packages of tests/weights.txt and espeak-ng. Programs are exported into
the cache, so that a second start only runs them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

# The folder of the repository: tests.support is no installed package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import replaced

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError
from etdeploy.core.values import silent
from etdeploy.export.derive import export_spec
from etdeploy.export.preload import preloaded_exports
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.recipe.model import Recipe
from tests.support.export import run_support
from tests.support.real.files import FAMILIES, Unavailable, recipe

SCHEMES = (
    "portable/none", "xnnpack/none", "xnnpack/int8_static", "xnnpack/int8_dynamic",
    "xnnpack/8da8w", "xnnpack/8da4w", "openvino/none", "openvino/fp16", "openvino/int8_static",
)  # fmt: skip
# Portable kernels take minutes for a picture.
_TOO_SLOW = {("efficientnet-lite0", "portable/none")}
# OpenVINO computes 32-bit floats as bfloat16 where it can: docs/openvino.md.
_IN_32_BITS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}


@dataclass
class Row:
    """A scheme's programs of a family.

    Attributes:
        scheme: `BACKEND/SCHEME`; `eager` for the model itself.
        figures: Of the task, by name.
        losses: Of each network's outputs, against the eager float model.
        programs: Folder of each network's program, by its name.
        size_bytes: Of all programs; 0 for none.
        refused: Why a network has no program, by its name; it is run eagerly instead.
    """

    scheme: str
    figures: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which `etdeploy run` would start the program."""
        return _IN_32_BITS if self.scheme == "openvino/none" else {}

    def add(self, network: str, made: Path | EtdeployError) -> None:
        if isinstance(made, EtdeployError):
            self.refused[network] = made.message
            return
        self.programs[network] = str(made)
        self.size_bytes += (made / PROGRAM_FILE).stat().st_size


def main() -> None:
    given = _arguments()
    workspace = Workspace(given.cache)
    tables = {name: _measured(name, given.schemes, workspace) for name in given.families}
    printed = {name: "\n".join(_table(name, rows)) for name, rows in tables.items()}
    if given.write:
        page = given.write.read_text()
        for name, table in printed.items():
            page = replaced(page, table, f"accuracy.py: {name}")
        given.write.write_text(page)
    elif given.json:
        print(json.dumps({name: [asdict(r) for r in rows] for name, rows in tables.items()}))
    else:
        print("\n\n".join(printed.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--cache", type=Path, help="of programs; by default, a temporary one")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true")
    how.add_argument("--write", type=Path, help="a Markdown file whose tables are replaced")
    given = parser.parse_args()
    given.cache = given.cache or Path(tempfile.gettempdir()) / "etdeploy-accuracy"
    return given


def _measured(name: str, schemes: Sequence[str], workspace: Workspace) -> list[Row]:
    """The family's rows: the eager model first."""
    rows = [Row(s) for s in ("eager", *schemes) if (name, s) not in _TOO_SLOW]
    try:
        specs = {
            (row.scheme, network): _spec(recipe(FAMILIES[name], network, _export(row.scheme)))
            for row in rows[1:]
            for network in FAMILIES[name].networks
        }
    except Unavailable as reason:
        sys.exit(str(reason))
    by_scheme = {row.scheme: row for row in rows}
    for (scheme, network), made in _exported(specs, workspace):
        by_scheme[scheme].add(network, made)
    ran = [row for row in rows if row.programs or row.scheme == "eager"]
    found: dict[str, Any] = {}
    for environment in ({}, _IN_32_BITS):
        cases = {row.scheme: (name, row.programs) for row in ran if row.environment == environment}
        found |= _executed(cases, environment)
    for row in ran:
        row.figures, row.losses = found[row.scheme]["figures"], found[row.scheme]["losses"]
    return rows


def _export(scheme: str) -> dict[str, str]:
    backend, quantization = scheme.split("/")
    return {"backend": backend, "quantization": quantization}


def _spec(made: Mapping[str, Any]) -> ExportSpec:
    return export_spec(Recipe.model_validate(made))


def _exported(
    specs: Mapping[tuple[str, str], ExportSpec], workspace: Workspace
) -> Iterator[tuple[tuple[str, str], Path | EtdeployError]]:
    """The program folder of each, or why there is none."""
    with (
        preloaded_exports(specs.values()) as exporter,
        tempfile.TemporaryDirectory() as logs,
    ):
        for (scheme, network), spec in specs.items():
            print(f"{network} with {scheme}", file=sys.stderr)
            log = Path(logs) / "export.log"
            try:
                made = export_program(spec, workspace, silent, log, exporter)
                yield (scheme, network), Path(made.folder)
            except EtdeployError as error:
                yield (scheme, network), error


def _executed(cases: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs the cases in a process with further environment variables."""
    if not cases:
        return {}
    with patch.dict("os.environ", environment), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps(cases))
        found: dict[str, Any] = run_support("real.execute", str(path))
    return found


def _table(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """Lines of Markdown: a row for each scheme, then what has no program."""
    columns = FAMILIES[name].figures
    headings = [heading for heading, _ in columns.values()]
    yield f"| program | {' | '.join(headings)} | least SQNR | least cosine | size |"
    yield f"| --- |{' ---: |' * (len(headings) + 3)}"
    for row in rows:
        if row.figures:
            shown = (
                form.format(row.figures[figure]) if figure in row.figures else ""
                for figure, (_, form) in columns.items()
            )
            cells = (_program(row.scheme), *shown, *_distances(row), _size(row))
            yield f"| {' | '.join(cells)} |"
    if refused := list(_refusals(rows)):
        yield ""
        yield from refused


def _program(scheme: str) -> str:
    return "the model itself" if scheme == "eager" else scheme.replace("/", " ")


def _distances(row: Row) -> tuple[str, str]:
    """The least SQNR and cosine of any output of any network."""
    losses = [loss for each in row.losses.values() for loss in each]
    if not losses:
        return "", ""
    sqnr_db = min(loss["sqnr_db"] or float("inf") for loss in losses)
    cosine = min(loss["cosine_similarity"] for loss in losses)
    return f"{sqnr_db:.1f} dB", f"{cosine:.5f}"


def _size(row: Row) -> str:
    return f"{row.size_bytes / 1e6:.2f} MB" if row.size_bytes else ""


def _refusals(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for name, reason in row.refused.items():
            yield f"* {_program(row.scheme)}, {name}: not exported. {reason}."


if __name__ == "__main__":
    main()
