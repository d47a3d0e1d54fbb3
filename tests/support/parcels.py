"""Small artifacts, and orders for them, without an export or a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from etdeploy.bench.assemble import Revision
from etdeploy.bench.bundle import bundle_file
from etdeploy.bench.measure import PreparedMeasurement
from etdeploy.cache.workspace import Workspace
from etdeploy.core.hashing import sha256_bytes
from etdeploy.devices.base import Bundle, Capabilities, DeviceFacts, ProcessLaunch
from etdeploy.farm.model import AvailableDevice, BuildArtifact, Order
from etdeploy.farm.work.artifact import pack
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


def make_artifact(folder: Path, workspace: Workspace, **sections: Any) -> BuildArtifact:
    """An artifact in a cache."""
    return pack(make_prepared(folder, **sections), "mlp", None, REVISION, workspace)


def with_runner(prepared: PreparedMeasurement, script: Path) -> PreparedMeasurement:
    """The same with a script in the place of its runner."""
    [runner] = [file for file in prepared.bundle.files if file.path.endswith("etdeploy-runner")]
    other = bundle_file(script, runner.path, executable=True)
    files = tuple(other if file is runner else file for file in prepared.bundle.files)
    return replace(prepared, bundle=prepared.bundle.model_copy(update={"files": files}))


def plain_artifact(folder: Path, files: dict[str, bytes], key: str = "0" * 64) -> BuildArtifact:
    """An artifact of these files, which nothing can be measured with."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return BuildArtifact(
        key=key,
        recipe="mv3",
        target="android-arm64",
        soc=None,
        folder=str(folder),
        bundle=Bundle(files=(), launch=ProcessLaunch(argv=("runner",))),
        files={name: sha256_bytes(content) for name, content in files.items()},
    )


def make_offer(name: str = "android:FAKE", **changes: Any) -> AvailableDevice:
    kind = name.partition(":")[0]
    values: dict[str, Any] = {
        "identity": name,
        "name": name,
        "host": "box",
        "facts": DeviceFacts(name=name, kind=kind, target="android-arm64"),
        "capabilities": Capabilities(),
    }
    return AvailableDevice(**(values | changes))


def make_order(
    artifact: BuildArtifact, offer: AvailableDevice | None = None, **changes: Any
) -> Order:
    values: dict[str, Any] = {"visit": "n1-1", "attempt": 1, "limit_s": 60.0}
    return Order(**(values | {"offer": offer or make_offer(), "artifact": artifact} | changes))
