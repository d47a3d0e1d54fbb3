"""Libraries for existing apps: consumers of their own compile, and run real programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import executorch
import numpy as np
import pytest

from etdeploy.apps.cpp import KIND, CppSubject, library_files
from etdeploy.apps.library import AndroidLibrary, IosLibrary
from etdeploy.apps.merge import write_project
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import require
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.values import silent
from etdeploy.program.inspect import inspect_file
from etdeploy.provider.checkout import Libraries
from etdeploy.provider.wheel import obtain_wheel
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.toolchains import find_programs
from etdeploy.targets.platforms import find_emulator, find_target, host_target
from tests.integration.apps.android_template.conftest import tools
from tests.support.android_app import AndroidLibraries, Tools, run
from tests.support.generation_values import PROMPTS
from tests.support.ios_template import HEADERS, INSIDE, LINK
from tests.support.libraries import inference_subject, text_subject, write_library
from tests.support.runtime_runs import plan_here, programs, text_programs
from tests.support.swift import Swift, swift

pytestmark = pytest.mark.integration

__all__ = ["programs", "swift", "text_programs", "tools"]

SUPPORT = Path(__file__).parents[2] / "support"
CPP = SUPPORT / "cpp_consumer"
NAMES = {"inputs": ["image", "class"], "expected": ["picked", "next", "rows"]}


@pytest.mark.nightly
def test_an_android_app_uses_two_libraries(
    tools: Tools, programs: Path, text_programs: Path, tmp_path: Path
) -> None:
    platform = AndroidLibrary()
    pair, files = inference_subject(platform, programs / "two_inputs", "pair", NAMES)
    words, text_files = text_subject(platform, text_programs, "words", tmp_path)
    folders = [
        write_library(platform, pair, files, tmp_path / "pair"),
        write_library(platform, words, text_files, tmp_path / "words"),
    ]
    told = AndroidLibraries(tmp_path / "built", folders).run(
        tools, "org.example.consumer.PairGolden", "org.example.consumer.WordsGolden",
        "org.example.consumer.Consumer",
    )  # fmt: skip
    assert "OK (10 tests)" in told
    ids = next(line for line in told.splitlines() if line.startswith("ids "))
    expected = json.loads((text_programs / "texts.json").read_text())[1]
    assert len(PROMPTS[1]) == 8
    assert json.loads(ids.removeprefix("ids ")) == expected[8:24]


def _cpp_library(programs: Path, name: str, folder: Path, target: str = "") -> Path:
    """The package for a program of runtime_export, moved from where it was written."""
    program = inspect_file(programs / name / "program.pte")
    plan = plan_here(program, target, profile=False)
    wheel = obtain_wheel(find_target(plan.build_target), host_target(), Workspace.default())
    names = ("runtime", "threadpool", "kernels_optimized", "kernels_quantized", "backend_xnnpack")
    needed = [name for name in names if name in (*plan.component_names, "kernels_optimized")]
    files = [f"libexecutorch{'' if n == 'runtime' else f'_{n}'}.so" for n in needed]
    runner = BuiltRunner(
        path=str(Path(wheel.root) / "lib"), executable="", libraries=tuple(files), loader=None,
        target=plan.target, sha256="", operators=(), backends=(), executorch_version="1.5.1",
    )  # fmt: skip
    subject, payload = inference_subject(AndroidLibrary(), programs / name, name, NAMES)
    made = CppSubject(
        subject.loaded, program, subject.model, payload, plan, Libraries(wheel=wheel), runner
    )
    files_made, _ = library_files(
        made, host_target(), Workspace.default(), None, silent, folder / "log"
    )
    write_project(folder / "before", files_made, KIND)
    shutil.move(folder / "before", folder / "my library")
    return folder / "my library"


def _consumed(library: Path, folder: Path, *options: str) -> Path:
    """A consumer in a folder of its own, and the library's example, built."""
    cmake, ninja = require(find_programs())
    for name, source in (("consumer", CPP), ("example", library / "example")):
        run(cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", source, "-B",
            folder / name, f"-DCMAKE_PREFIX_PATH={library}",
            "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", *options)  # fmt: skip
        run(cmake, "--build", folder / name)
    return folder


def test_a_cpp_program_finds_the_package_where_it_was_moved(programs: Path, tmp_path: Path) -> None:
    library = _cpp_library(programs, "two_inputs", tmp_path)
    built = _consumed(library, tmp_path / "built")
    golden = library / "example" / "golden"
    assert run(built / "example" / "golden", golden).endswith("as expected\n")
    told = run(built / "consumer" / "consumer", __file__).splitlines()
    assert told[-6:] == [
        "1 rows, 6 1 4, shape 1 3, next 6 1 4",
        "input: image has 11 values instead of 12 (2 x 6)",
        "input: image has the shape 9 x 6; the largest is 8 x 6",
        "program: /none.pte: No such file or directory",
        f"program: {__file__} is another model: {Path(__file__).stat().st_size} bytes instead of "
        f"{(programs / 'two_inputs' / 'program.pte').stat().st_size}",
        "4 threads agree",
    ]  # fmt: skip
    run(built / "example" / "example")
    texts = [path for path in library.rglob("*") if path.suffix in (".cmake", ".so", ".h", ".md")]
    assert [path for path in texts if str(tmp_path).encode() in path.read_bytes()] == []
    expected = np.fromfile(golden / "expected" / "0.bin", np.float32)
    (expected + 1).tofile(golden / "expected" / "0.bin")
    found = subprocess.run(
        [built / "example" / "golden", golden], capture_output=True, text=True, check=False
    )
    assert (found.returncode, "picked[0] is" in found.stdout) == (1, True)


@pytest.mark.nightly
def test_a_cpp_package_for_another_processor(programs: Path, tmp_path: Path) -> None:
    compiler, qemu = shutil.which("aarch64-linux-gnu-g++"), find_emulator("aarch64")
    if not compiler or not qemu:
        pytest.skip("needs a cross compiler and qemu")
    library = _cpp_library(programs, "two_inputs", tmp_path, "linux-aarch64")
    toolchain = resource_folder("toolchains") / "linux-aarch64.cmake"
    built = _consumed(library, tmp_path / "built", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
    system = Path(run(compiler, "-print-file-name=libc.so.6").strip()).resolve().parents[1]
    started = (qemu, "-L", system, built / "example" / "golden", library / "example" / "golden")
    assert run(*started).endswith("as expected\n")
    cmake, _ = require(find_programs())
    refused = subprocess.run(
        [cmake, "-S", CPP, "-B", tmp_path / "wrong", f"-DCMAKE_PREFIX_PATH={library}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "was built for linux-aarch64" in refused.stderr


def _swift_module(
    swift: Swift, folder: Path, name: str, mounts: dict[str, Path], resources: str = ""
) -> list[str]:
    """Compiles a library's C++ and Swift as SwiftPM would; gives the options that link it."""
    native, sources = f"{name}/Sources/{name}Native", f"{name}/Sources/{name}Library"
    objects = []
    for path in sorted((folder / native).glob("*.cpp")):
        swift.run(
            "clang++", "-std=c++17", "-Wall", "-fPIC", "-DC10_USING_CUSTOM_GENERATED_MACROS",
            *(f"-I{INSIDE}/{each}" for each in HEADERS), f"-I{native}/include", "-c",
            f"{native}/{path.name}", "-o", f"{name}{path.stem}.o", folder=folder, mounts=mounts,
        )  # fmt: skip
        objects.append(f"{name}{path.stem}.o")
    # SwiftPM generates this for a target with resources.
    (folder / sources / "Bundle.swift").write_text(
        "import Foundation\nextension Bundle {\n"
        f'  static let module = Bundle(path: "/work/{resources or sources}")!\n}}\n'
    )
    files = sorted(p.relative_to(folder).as_posix() for p in (folder / sources).rglob("*.swift"))
    swift.run(
        "swiftc", "-swift-version", "6", "-warnings-as-errors", "-enable-testing",
        "-parse-as-library", "-emit-library", "-static", "-emit-module", "-module-name",
        f"{name}Library", "-I", ".", "-I", f"{native}/include", "-o", f"lib{name}Library.a", *files,
        folder=folder,
    )  # fmt: skip
    return [f"lib{name}Library.a", *objects, "-I", f"{native}/include"]


@pytest.mark.nightly
def test_a_swift_program_uses_two_packages(
    swift: Swift, programs: Path, text_programs: Path, tmp_path: Path
) -> None:
    platform = IosLibrary()
    pair, files = inference_subject(platform, programs / "two_inputs", "pair", NAMES)
    words, text_files = text_subject(platform, text_programs, "words", tmp_path)
    write_library(platform, pair, files, tmp_path / "Pair")
    write_library(platform, words, text_files, tmp_path / "Words")
    support = SUPPORT / "swift_library"
    for name in ("ExecuTorch", "XCTest"):
        shutil.copy(support / f"{name}.swift", tmp_path)
        swift.run(
            "swiftc", "-swift-version", "6", "-parse-as-library", "-emit-module", "-emit-library",
            "-static", "-module-name", name, "-o", f"lib{name}.a", f"{name}.swift",
            folder=tmp_path,
        )  # fmt: skip
    mounts = {INSIDE: Path(next(iter(executorch.__path__)))}
    linked = [
        *_swift_module(swift, tmp_path, "Pair", mounts),
        *_swift_module(swift, tmp_path, "Words", mounts), "libExecuTorch.a", "libXCTest.a",
    ]  # fmt: skip
    shutil.copy(support / "Consumer.swift", tmp_path)
    swift.run(
        "swiftc", "-swift-version", "6", "-warnings-as-errors", "-parse-as-library", "-I", ".",
        "Consumer.swift", *linked, *LINK, "-lstdc++", "-o", "consumer",
        folder=tmp_path, mounts=mounts,
    )  # fmt: skip
    told = swift.run("./consumer", folder=tmp_path, mounts=mounts).stdout.splitlines()
    expected = json.loads((text_programs / "texts.json").read_text())[1]
    assert told == [
        "1 [6.0, 1.0, 4.0] [1, 3] [6, 1, 4]",
        'input("image has 11 values instead of 12 (2 x 6).")',
        'input("image has the shape 9 x 6; the largest is 8 x 6.")',
        'program("There is no program /none.pte.")',
        "CancellationError()",
        "sum 6.0",
        "closed",
        f"ids {expected[8:24]}",
        "first true",
        "text some",
        "drawn true",
        'input("33 tokens do not fit into a context of 32.")',
        'input("The prompt has the id 99; the model has 48 tokens.")',
        "closed",
    ]
    _golden(swift, tmp_path, "Pair", "testExample", linked, mounts)
    _golden(swift, tmp_path, "Words", "testAGreedyTextIsTheSameTwice", linked, mounts)


def _golden(
    swift: Swift, folder: Path, name: str, test: str, linked: list[str], mounts: dict[str, Path]
) -> None:
    """Runs a test of a package's golden tests."""
    tests = folder / name / "Tests" / f"{name}Tests"
    (tests / "Run.swift").write_text(
        "import Foundation\nextension Bundle {\n"
        f'  static let module = Bundle(path: "/work/{name}/Tests/{name}Tests")!\n}}\n'
        "@main\nstruct Run {\n  static func main() async throws {\n"
        f'    try await GoldenTests().{test}()\n    print("ended")\n  }}\n}}\n'
    )
    files = sorted(path.relative_to(folder).as_posix() for path in tests.glob("*.swift"))
    swift.run(
        "swiftc", "-swift-version", "6", "-parse-as-library", "-module-name", "Golden", "-I", ".",
        *files, *linked, *LINK, "-lstdc++", "-o", f"golden{name}", folder=folder, mounts=mounts,
    )  # fmt: skip
    assert swift.run(f"./golden{name}", folder=folder, mounts=mounts).stdout == "ended\n"
