"""Generated iOS projects, and their sources compiled on Linux."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etdeploy.apps.ios.platform import IosApp, binary_files, template_variables
from etdeploy.apps.project import TENSOR, render_tree
from tests.support.swift import Swift

Workload = Literal["inference", "generation"]
TEMPLATE = Path(__file__).parents[2] / "templates/ios"
STUBS = Path(__file__).with_name("swift_stubs")
PROGRAMS = Path(__file__).with_name("swift_programs")
XCTEST = Path(__file__).with_name("swift_library") / "XCTest.swift"
_STUB_ORDER = (
    "CoreGraphics", "ImageIO", "AVFoundation", "UIKit", "ExecuTorch", "SwiftUI", "Charts",
    "PhotosUI",
)  # fmt: skip
INSIDE = "/executorch"
HEADERS = ("include", "include/executorch/runtime/core/portable_type/c10")
_LIBRARIES = ("", "_kernels_optimized", "_backend_xnnpack", "_threadpool")
# Kernels and backends register themselves, so nothing refers to their libraries.
LINK = (
    "-L", f"{INSIDE}/lib", "-Xlinker", "--no-as-needed",
    *(f"-lexecutorch{name}" for name in _LIBRARIES),
    "-Xlinker", "-rpath", "-Xlinker", f"{INSIDE}/lib",
)  # fmt: skip
# Foundation's, which Linux lacks: it becomes a source of the app.
_FOUNDATION = STUBS / "ThermalState.swift"
# What only a device has: the screens, camera and microphone, and ExecuTorch's Swift API.
SCREENS = (
    "App.swift", "Camera.swift", "ContentView.swift", "FirstView.swift", "Front.swift",
    "ModelSection.swift", "Photo.swift", "Recorder.swift", "Root.swift",
)  # fmt: skip
_DEVICE = (*SCREENS, "ExecuTorchModel.swift")


def make_app(workload: Workload = "inference", **changes: Any) -> IosApp:
    """Facts of an app, of which some may be changed."""
    facts: dict[str, Any] = {
        "id": "org.example.convnet",
        "name": "ConvNet",
        "target": "Convnet",
        "workload": workload,
        "products": ("backend_xnnpack", "executorch", "kernels_optimized"),
        "package_branch": "swiftpm-1.5.1",
        "threadpool": True,
        "increased_memory": False,
        "model_name": "convnet",
        "program": "program.pte",
        "bundled": True,
        "etdeploy_version": "0.1",
    }
    return IosApp(**{**facts, **changes})


def render_project(app: IosApp, to: Path) -> Path:
    """Writes the project of an app, without a model."""
    files = {**render_tree(TEMPLATE, template_variables(app)), **binary_files(app)}
    for name, content in files.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)
    return to


def compile_stubs(swift: Swift, folder: Path) -> None:
    """Makes modules with the names of Apple's and ExecuTorch's, for a type check."""
    for name in _STUB_ORDER:
        shutil.copy(STUBS / f"{name}.swift", folder)
        swift.run(
            "swiftc", "-swift-version", "6", "-parse-as-library", "-emit-module",
            "-module-name", name, "-I", ".", f"{name}.swift",
            folder=folder,
        )  # fmt: skip


def swift_files(sources: Path) -> list[str]:
    """Paths of an app's Swift, in its folder of sources."""
    return sorted(path.relative_to(sources).as_posix() for path in sources.rglob("*.swift"))


def compile_xctest(swift: Swift, folder: Path) -> None:
    """Makes a module XCTest, which prints what is wrong, and its library."""
    shutil.copy(XCTEST, folder)
    swift.run(
        "swiftc", "-swift-version", "6", "-parse-as-library", "-emit-module", "-emit-library",
        "-static", "-module-name", "XCTest", "-o", "libXCTest.a", XCTEST.name, folder=folder,
    )  # fmt: skip


def with_tests(project: Path) -> Path:
    """The sources of an app with those of its test target, which see what is internal."""
    tests = project / "ConvnetTests/GoldenTests.swift"
    imported = "@testable import Convnet\n"
    assert imported in tests.read_text()
    text = tests.read_text().replace(imported, "")
    (project / "Convnet/GoldenTests.swift").write_text(text)
    return project / "Convnet"


def type_check(swift: Swift, folder: Path, sources: Path) -> str:
    """What the compiler says against an app's sources, in a folder with `compile_stubs`."""
    there = folder / "sources"
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(sources, there)
    shutil.copy(_FOUNDATION, there)
    names = [f"sources/{path}" for path in swift_files(there)]
    checked = swift.run(
        "swiftc", "-swift-version", "6", "-typecheck", "-wmo", "-parse-as-library",
        "-warnings-as-errors", "-I", ".", "-import-objc-header", "sources/Bridging.h", *names,
        folder=folder, check=False,
    )  # fmt: skip
    return checked.stdout + checked.stderr


@dataclass(frozen=True)
class Compiled:
    """An app's measuring code with a program of swift_programs.

    Attributes:
        swift: Runs it.
        binary: The program.
        mounts: Folders that it needs, by their paths.
    """

    swift: Swift
    binary: Path
    mounts: Mapping[str, Path]

    def run(self, *words: str, folders: Mapping[str, Path] | None = None, stdin: str = "") -> str:
        """What it prints; each of `folders` is at /NAME."""
        given = {f"/{name}": folder for name, folder in (folders or {}).items()}
        there = {**self.mounts, **given}
        return self.swift.run(
            f"./{self.binary.name}", *words, folder=self.binary.parent, mounts=there, stdin=stdin
        ).stdout


def compile_program(
    swift: Swift,
    app: IosApp,
    folder: Path,
    *,
    executorch: Path | None = None,
    program: str | None = None,
) -> Compiled:
    """Compiles an app's measuring code.

    Args:
        swift: The compiler.
        app: Of which the sources are.
        folder: Where all of that is made.
        executorch: The folder of an installed ExecuTorch, to link its runtime.
        program: The name in swift_programs; `golden` has the test target of the project.
    """
    sources = render_project(app, folder / "project") / app.target
    own = app.workload == "inference" and app.task != TENSOR
    program = program or (app.task if own else app.workload)
    shutil.copy(PROGRAMS / f"{program}.swift", sources / "main.swift")
    shutil.copy(_FOUNDATION, sources)
    if program == "golden":
        with_tests(sources.parent)
        compile_xctest(swift, sources)
        (sources / XCTEST.name).unlink()
    for name in _DEVICE:
        (sources / name).unlink(missing_ok=True)
    mounts = {INSIDE: executorch} if executorch else {}
    sources_cpp = sorted(path.name for path in sources.glob("*.cpp"))
    for name in sources_cpp:
        swift.run(
            "clang++", "-std=c++17", "-Wall", "-DC10_USING_CUSTOM_GENERATED_MACROS",
            *(f"-I{INSIDE}/{each}" for each in HEADERS), "-c", name,
            folder=sources, mounts=mounts,
        )  # fmt: skip
    swift.run(
        "swiftc", "-swift-version", "6", "-import-objc-header", "Bridging.h",
        *swift_files(sources),
        *(f"{Path(name).stem}.o" for name in sources_cpp),
        *(("-I", ".", "libXCTest.a") if program == "golden" else ()),
        *(LINK if executorch else ()), "-lstdc++", "-o", "measure",
        folder=sources, mounts=mounts,
    )  # fmt: skip
    return Compiled(swift, sources / "measure", mounts)


def write_payload(folder: Path, **changes: Any) -> Path:
    """The folder `Model` of an app whose model doubles three numbers."""
    (folder / "inputs").mkdir(parents=True)
    (folder / "expected").mkdir()
    (folder / "program.pte").write_bytes(b"program")
    (folder / "inputs/0.bin").write_bytes(floats(1, 2, 3))
    (folder / "expected/0.bin").write_bytes(floats(2, 4, 6.0005))
    tensor = {"kind": "Tensor", "dtype": "float32", "shape": [3]}
    near = {"atol": 0.001}
    facts: dict[str, Any] = {
        "name": "double",
        "workload": "inference",
        "program": "program.pte",
        "bundled": True,
        "program_sha256": "0" * 64,
        "program_bytes": 7,
        "executorch_version": "1.5.1",
        "backends": ["XnnpackBackend"],
        "quantization": "none",
        "method": "forward",
        "warmup": -1,
        "iterations": 20,
        "threads": 0,
        "sizes": [
            {
                "name": "",
                "inputs": [{**tensor, "path": "inputs/0.bin"}],
                "expected": [
                    {"name": "twice", **tensor, "path": "expected/0.bin", **near},
                    {"name": "three", "kind": "Int", "value": 4},
                ],
            }
        ],
        "generation": None,
        **changes,
    }
    (folder / "model.json").write_text(json.dumps(facts, indent=2))
    return folder


def floats(*values: float) -> bytes:
    """Bytes of a float32 tensor."""
    return struct.pack(f"<{len(values)}f", *values)
