"""The app's Swift: whole, in Swift 6's mode, without warnings, and in the usual style."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.ios_template import (
    Workload,
    compile_stubs,
    make_app,
    render_project,
    swift_files,
    type_check,
)
from tests.support.swift import Swift

pytestmark = pytest.mark.integration

WORKLOADS: tuple[Workload, ...] = ("inference", "generation")


@pytest.fixture(scope="module")
def stubs(swift: Swift, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    compile_stubs(swift, folder)
    return folder


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_whole_app_type_checks(
    swift: Swift, stubs: Path, tmp_path: Path, workload: Workload
) -> None:
    project = render_project(make_app(workload), tmp_path)
    assert type_check(swift, stubs, project / "Convnet") == ""


# File, what is there, what a person may write in its place, and what the compiler says.
_MISTAKES = (
    ("ContentView", "session.measure()", "session.measured()", "member 'measured'"),
    ("ModelSection", '"Quantization", value:', '"Quantization", text:',
     "incorrect argument label"),
    ("ExecuTorchModel", "dataType: type", "dataType: shape", "DataType"),
    ("Benchmark", "found.warmup = warming.inferences", "found.warmup = warming", "Warmup"),
)  # fmt: skip


def _replace(sources: Path, file: str, right: str, wrong: str) -> None:
    text = (sources / f"{file}.swift").read_text()
    assert right in text
    (sources / f"{file}.swift").write_text(text.replace(right, wrong))


def test_the_type_check_sees_mistakes(swift: Swift, stubs: Path, tmp_path: Path) -> None:
    sources = render_project(make_app(), tmp_path) / "Convnet"
    for file, right, wrong, _ in _MISTAKES:
        _replace(sources, file, right, wrong)
    said = type_check(swift, stubs, sources)
    assert [each for *_, each in _MISTAKES if each not in said] == []


def test_the_type_check_sees_a_wrong_thread(swift: Swift, stubs: Path, tmp_path: Path) -> None:
    sources = render_project(make_app(), tmp_path) / "Convnet"
    _replace(sources, "ContentView", "{ told.yield($0) }", "{ self.progress = $0 }")
    assert "main actor-isolated" in type_check(swift, stubs, sources)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_style_is_that_of_swift_format(
    swift: Swift, tmp_path: Path, workload: Workload
) -> None:
    sources = render_project(make_app(workload), tmp_path) / "Convnet"
    swift.run("swift", "format", "lint", "--strict", *swift_files(sources), folder=sources)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_only_one_file_needs_executorch_and_measuring_needs_foundation_alone(
    tmp_path: Path, workload: Workload
) -> None:
    sources = render_project(make_app(workload), tmp_path) / "Convnet"
    imports = {
        path.name: set(re.findall(r"^import (\w+)", path.read_text(), re.MULTILINE))
        for path in sources.rglob("*.swift")
    }
    screen = {"App.swift", "ContentView.swift", "ModelSection.swift"}
    executorch = {name for name, found in imports.items() if "ExecuTorch" in found}
    assert executorch == ({"ExecuTorchModel.swift"} if workload == "inference" else set())
    for name in imports.keys() - screen - executorch:
        assert imports[name] <= {"Foundation"}, name
