"""The app's Swift: whole, in Swift 6's mode, without warnings, and in the usual style."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etdeploy.apps.ios.platform import IosApp
from tests.support.ios_template import (
    SCREENS,
    Workload,
    compile_stubs,
    compile_xctest,
    make_app,
    render_project,
    swift_files,
    type_check,
    with_tests,
)
from tests.support.swift import Swift

pytestmark = pytest.mark.integration

APPS = (
    make_app(), make_app("generation"),
    *(pytest.param(each, marks=pytest.mark.nightly) for each in (
        make_app(task="image-classification"), make_app(task="automatic-speech-recognition"),
        make_app("generation", task="text-generation"),
    )),
)  # fmt: skip


@pytest.fixture(scope="module")
def stubs(swift: Swift, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    compile_stubs(swift, folder)
    return folder


each_app = pytest.mark.parametrize("app", APPS, ids=lambda app: f"{app.workload}-{app.task}")


@each_app
def test_the_whole_app_type_checks(swift: Swift, stubs: Path, tmp_path: Path, app: IosApp) -> None:
    project = render_project(app, tmp_path)
    assert type_check(swift, stubs, project / "Convnet") == ""


# File, what is there, what a person may write in its place, and what the compiler says.
_TASK_MISTAKES = {
    "image-classification": (
        ("FirstView", "matching: .images", "matching: .videos", "'videos'"),
        ("Camera", "picker.delegate = context.coordinator", "picker.delegate = self", "CameraView"),
        ("Photo", "space: space", "space: nil", "'nil' is not compatible"),
    ),
    "automatic-speech-recognition": (
        ("Recorder", "guard let channel", "self.stop()\n      guard let channel",
         "main actor-isolated"),
        ("FirstView", "Button(\"Stop\") { session.stop() }", "Button(\"Stop\", session.stop)",
         "expected argument type"),
    ),
    "text-generation": (
        ("FirstView", "value: $settings.newTokens", "value: settings.newTokens", "Binding"),
        ("FirstView", "told.yield($0)", "self.show($0)", "main actor-isolated"),
    ),
}  # fmt: skip
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


@pytest.mark.nightly
@pytest.mark.parametrize("task", _TASK_MISTAKES)
def test_the_type_check_sees_mistakes_in_a_first_screen(
    swift: Swift, stubs: Path, tmp_path: Path, task: str
) -> None:
    workload: Workload = "generation" if task == "text-generation" else "inference"
    sources = render_project(make_app(workload, task=task), tmp_path) / "Convnet"
    for file, right, wrong, said in _TASK_MISTAKES[task]:
        text = (sources / f"{file}.swift").read_text()
        _replace(sources, file, right, wrong)
        assert said in type_check(swift, stubs, sources)
        (sources / f"{file}.swift").write_text(text)


def test_the_type_check_sees_a_wrong_thread(swift: Swift, stubs: Path, tmp_path: Path) -> None:
    sources = render_project(make_app(), tmp_path) / "Convnet"
    _replace(sources, "ContentView", "{ told.yield($0) }", "{ self.progress = $0 }")
    assert "main actor-isolated" in type_check(swift, stubs, sources)


@pytest.mark.nightly
@pytest.mark.parametrize("workload", ["inference", "generation"])
def test_the_tests_of_the_app_type_check(
    swift: Swift, stubs: Path, tmp_path: Path, workload: Workload
) -> None:
    compile_xctest(swift, stubs)
    sources = with_tests(render_project(make_app(workload), tmp_path))
    assert type_check(swift, stubs, sources) == ""
    right = "verdict.isRight" if workload == "inference" else "calls.logits.count"
    _replace(sources, "GoldenTests", right, "verdict.isWrong")
    assert "GoldenTests.swift" in type_check(swift, stubs, sources)


@each_app
def test_the_style_is_that_of_swift_format(swift: Swift, tmp_path: Path, app: IosApp) -> None:
    project = render_project(app, tmp_path)
    swift.run("swift", "format", "lint", "--strict", *swift_files(project), folder=project)


@each_app
def test_only_one_file_needs_executorch_and_what_is_measured_needs_foundation_alone(
    tmp_path: Path, app: IosApp
) -> None:
    sources = render_project(app, tmp_path) / "Convnet"
    imports = {
        path.name: set(re.findall(r"^import (\w+)", path.read_text(), re.MULTILINE))
        for path in sources.rglob("*.swift")
    }
    executorch = {name for name, found in imports.items() if "ExecuTorch" in found}
    assert executorch == ({"ExecuTorchModel.swift"} if app.workload == "inference" else set())
    for name in imports.keys() - set(SCREENS) - executorch:
        assert imports[name] <= {"Foundation"}, name
