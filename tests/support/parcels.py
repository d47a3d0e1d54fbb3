"""Small parcels, and orders for them, without an export or a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from etdeploy.bench.assemble import Revision
from etdeploy.bench.bundle import bundle_file
from etdeploy.bench.measure import PreparedMeasurement
from etdeploy.cache.workspace import Workspace
from etdeploy.devices.base import Bundle, Capabilities, DeviceFacts, ProcessLaunch
from etdeploy.farm.model import Offer, Order, Parcel
from etdeploy.farm.work.parcel import pack
from etdeploy.program.folder import PROGRAM_FILE, PROGRAM_INFO
from etdeploy.program.model import Method, Program
from etdeploy.recipe.document import KeyPath, SourceLocation
from etdeploy.recipe.load import LoadedRecipe
from tests.support.bench_values import make_program_folder, make_recipe, make_runner

REVISION = Revision("c0ffee", False)


def make_prepared(folder: Path, **sections: Any) -> PreparedMeasurement:
    """What the steps before a measurement would make, in a folder; nothing of it can run."""
    make_program_folder(folder / "program")
    method = Method(
        name="forward", inputs=(), outputs=(), operators=(), delegates=(), instructions=0,
        planned_memory_bytes=0,
    )  # fmt: skip
    program = Program(
        sha256="ab" * 32, size_bytes=7, schema_version=0, constant_bytes=0, methods=(method,)
    )
    program.save(folder / "program" / PROGRAM_INFO)
    runner = make_runner(folder / "runner")
    executable = folder / "runner" / runner.executable
    path = folder / "mlp.yaml"
    places: dict[KeyPath, SourceLocation] = {
        ("benchmark", "runs"): SourceLocation("mlp.yaml", 3, 9, folder)
    }
    loaded = LoadedRecipe("mlp", path, make_recipe(**sections), ((path, "ef" * 32),), places)
    files = (
        bundle_file(executable, "runner/etdeploy-runner", executable=True),
        bundle_file(folder / "program" / PROGRAM_FILE, PROGRAM_FILE),
    )
    return PreparedMeasurement(
        Bundle(files=files, launch=ProcessLaunch(argv=("runner/etdeploy-runner",))),
        loaded,
        folder / "program",
        program,
        runner,
    )


def make_parcel(folder: Path, workspace: Workspace, **sections: Any) -> Parcel:
    """A parcel in a cache."""
    return pack(make_prepared(folder, **sections), "mlp", None, REVISION, workspace)


def with_runner(prepared: PreparedMeasurement, script: Path) -> PreparedMeasurement:
    """The same with a script in the place of its runner."""
    [runner] = [file for file in prepared.bundle.files if file.path.endswith("etdeploy-runner")]
    other = bundle_file(script, runner.path, executable=True)
    files = tuple(other if file is runner else file for file in prepared.bundle.files)
    return replace(prepared, bundle=prepared.bundle.model_copy(update={"files": files}))


def make_offer(name: str = "android:FAKE", **changes: Any) -> Offer:
    kind = name.partition(":")[0]
    values: dict[str, Any] = {
        "identity": name,
        "name": name,
        "host": "box",
        "facts": DeviceFacts(name=name, kind=kind, target="android-arm64"),
        "capabilities": Capabilities(),
    }
    return Offer(**(values | changes))


def make_order(parcel: Parcel, offer: Offer | None = None, **changes: Any) -> Order:
    values: dict[str, Any] = {"visit": "n1-1", "attempt": 1, "limit_s": 60.0}
    return Order(**(values | {"offer": offer or make_offer(), "parcel": parcel} | changes))
