"""Custom operators from Python to the runner: exported, compiled, run and compared."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.bench.compare import Expectation, compare_outputs
from etdeploy.core.errors import BuildError, ExportError
from etdeploy.core.process import Request, run
from etdeploy.core.progress import silent
from etdeploy.core.workspace import Workspace
from etdeploy.export.cache import program_key
from etdeploy.export.failure import failure_error
from etdeploy.export.protocol import Failure
from etdeploy.export.run import ExportedProgram, export_program
from etdeploy.export.spec import ExportSpec, export_spec
from etdeploy.program.folder import PROGRAM_INFO, load_provenance
from etdeploy.program.model import Program
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import Tolerance
from etdeploy.runtime.check import check_program
from etdeploy.runtime.custom_ops import blame, read_custom_ops
from etdeploy.targets.platforms import host_target
from tests.support.custom_ops import CustomRunner, build_custom
from tests.support.export import export_workspace, exported, spec_of  # noqa: F401
from tests.support.runtime_values import make_method, make_program, make_runner

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(host_target().system != "linux", reason="links the wheel of Linux"),
]
needs_cross = pytest.mark.skipif(
    host_target().name != "linux-x86_64"
    or not shutil.which("qemu-aarch64-static")
    or not shutil.which("aarch64-linux-gnu-g++"),
    reason="needs g++-aarch64-linux-gnu and qemu-user-static on Linux x86_64",
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "custom_op"
DATA = ROOT / "tests" / "data" / "custom_ops"

# A model that calls an operator of ops.py, beside it.
_MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.ops.mine.twice(x)

def make():
    return Model(), (torch.ones(2, 3),)
"""
_OPS = """
import torch

torch.library.define("mine::twice", "(Tensor x) -> Tensor")

@torch.library.impl("mine::twice", "CompositeExplicitAutograd")
def twice(x):
    return x * 2

@torch.library.register_fake("mine::twice")
def twice_shape(x):
    return torch.empty_like(x)
"""
_OUT = """
torch.library.define("mine::twice.out", "({arguments}*, Tensor(a!) out) -> Tensor(a!)")
"""
_LIBRARY = """
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

at::Tensor twice(const at::Tensor& x) { return at::mul(x, 2); }
at::Tensor& twice_out(const at::Tensor& x, at::Tensor& out) { return out.copy_(at::mul(x, 2)); }

TORCH_LIBRARY(mine, library) {
  library.def("twice(Tensor x) -> Tensor");
  library.def("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(mine, CompositeExplicitAutograd, library) {
  library.impl("twice", twice);
  library.impl("twice.out", twice_out);
}
"""


def _recipe_spec(path: Path) -> ExportSpec:
    return export_spec(load_recipe(str(path)).recipe)


def _folder(program: ExportedProgram) -> Path:
    return Path(program.folder)


def _assert_equal_outputs(runner: CustomRunner, program: Path, folder: Path) -> None:
    results = runner.run_program(program, folder)
    expected = load_provenance(program).expected
    expectation = Expectation(expected, program, "none", Tolerance())
    checks = compare_outputs(results.outputs, folder / "outputs", expectation)
    assert len(checks) == len(expected) > 0
    assert [c for c in checks if not c.within_tolerance] == []


@pytest.fixture(scope="module")
def example(export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    log = tmp_path_factory.mktemp("logs") / "export.log"
    spec = _recipe_spec(EXAMPLE / "recipe.yaml")
    return _folder(export_program(spec, export_workspace, silent, log))


@pytest.mark.parametrize("target", ["", pytest.param("linux-aarch64", marks=needs_cross)])
def test_the_example_gives_the_outputs_of_pytorch(
    target: str, example: Path, tmp_path: Path
) -> None:
    program = Program.load(example / PROGRAM_INFO)
    assert program.operators == ("fused::rms_norm.out",)
    ops = read_custom_ops(EXAMPLE / "kernels")
    runner = build_custom(ops, program, tmp_path, target)
    listed = json.loads(runner("--list-kernels").stdout)
    built = make_runner(tuple(listed["operators"]), tuple(listed["backends"]))
    assert check_program(program, built) == ()
    _assert_equal_outputs(runner, example, tmp_path)


def test_several_results_and_arguments_of_several_types(
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    spec = spec_of(
        {
            "model": {"python": f"{DATA}/bounds/model.py:make"},
            "export": {"backend": "portable", "custom_ops": f"{DATA}/bounds/ops.py"},
        }
    )
    made = _folder(export_program(spec, export_workspace, silent, tmp_path / "export.log"))
    ops = read_custom_ops(DATA / "bounds" / "kernels")
    # With the tracer, which is told of the kernel and its results.
    program = Program.load(made / PROGRAM_INFO)
    runner = build_custom(ops, program, tmp_path, profile=True)
    _assert_equal_outputs(runner, made, tmp_path)


@pytest.mark.parametrize(
    ("folder", "target", "operators"),
    [
        (
            "every_type",
            None,
            ["every::four.out", "every::one.out", "every::three_", "every::two.out"],
        ),
        ("self_registering", None, ["self::scaled.out"]),
        ("own_target", "own_kernels", ["self::scaled.out"]),
    ],
)
def test_what_a_folder_registers_is_in_the_runner(
    folder: str, target: str | None, operators: list[str], tmp_path: Path
) -> None:
    ops = read_custom_ops(DATA / folder, target)
    program = make_program(make_method(operators=tuple(operators)))
    listed = build_custom(ops, program, tmp_path)("--list-kernels")
    assert listed.returncode == 0, listed.stderr
    assert [name for name in operators if f'"{name}"' in listed.stdout] == operators


def _broken(tmp_path: Path, change: Callable[[str], str]) -> tuple[BuildError, Path, list[str]]:
    """The example's kernel after a change: the error, the kernel, and the build's output."""
    shutil.copytree(EXAMPLE / "kernels", tmp_path / "kernels")
    kernel = tmp_path / "kernels" / "rms_norm.cpp"
    kernel.write_text(change(kernel.read_text()))
    (tmp_path / "build").mkdir()
    ops = read_custom_ops(tmp_path / "kernels")
    program = make_program(make_method(operators=("fused::rms_norm.out",)))
    with pytest.raises(BuildError) as raised:
        build_custom(ops, program, tmp_path / "build")
    return raised.value, kernel, (tmp_path / "build" / "build.log").read_text().splitlines()


def _line(kernel: Path, text: str) -> int:
    return next(i for i, line in enumerate(kernel.read_text().splitlines(), 1) if text in line)


def test_a_compiler_error_has_the_kernels_file_and_line(tmp_path: Path) -> None:
    error, kernel, lines = _broken(tmp_path, lambda t: t.replace("float sum = 0", "flot sum = 0"))
    place = f"{kernel}:{_line(kernel, 'flot sum')}:5"
    assert f"{place}: error: " in error.message
    found = blame(read_custom_ops(kernel.parent), lines)
    assert found is not None
    assert found.place == place


def test_an_error_in_a_header_is_blamed_on_the_kernels_line(tmp_path: Path) -> None:
    _, kernel, lines = _broken(
        tmp_path, lambda t: t.replace("const_data_ptr<float>() + row", "sizes().at<int>(0) + row")
    )
    found = blame(read_custom_ops(kernel.parent), lines)
    assert found is not None
    assert found.place.startswith(f"{kernel}:{_line(kernel, 'sizes().at')}:")


def test_a_kernel_with_other_types_is_blamed_on_the_list(tmp_path: Path) -> None:
    error, kernel, lines = _broken(tmp_path, lambda t: t.replace("double eps", "float eps"))
    assert "undefined reference to" in error.message
    found = blame(read_custom_ops(kernel.parent), lines)
    assert found is not None
    assert found.place == f"{kernel.parent}/ops.yaml:3"
    assert "rms_norm_out(" in (found.remedy or "")
    assert "double eps" in (found.remedy or "")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shared_kernels", "is a SHARED_LIBRARY; make it a STATIC or an OBJECT library"),
        ("absent", "has no target 'absent' (runtime.custom_ops_target)"),
    ],
)
def test_a_target_that_cannot_be_linked(target: str, message: str, tmp_path: Path) -> None:
    program = make_program(make_method())
    with pytest.raises(BuildError) as raised:
        build_custom(read_custom_ops(DATA / "own_target", target), program, tmp_path)
    assert message in " ".join(raised.value.message.split())


def _project(folder: Path, ops: str | None, name: str = "ops.py") -> ExportSpec:
    folder.mkdir()
    (folder / "model.py").write_text(_MODEL)
    export = {"backend": "portable"}
    if ops is not None:
        (folder / name).write_text(ops)
        export["custom_ops"] = str(folder / name)
    return spec_of({"model": {"python": f"{folder}/model.py:make"}, "export": export})


def _shared(source: str, library: Path, *flags: str) -> None:
    code = library.with_suffix(".cpp")
    code.write_text(source)
    argv = ("c++", "-std=c++20", "-shared", "-fPIC", str(code), "-o", str(library), *flags)
    outcome = run(Request(argv))
    assert outcome.ok, outcome.stderr


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportError]:
    """How the export of each broken project fails."""
    root = tmp_path_factory.mktemp("failures")
    specs = {
        "unregistered": _project(root / "unregistered", None),
        "raises": _project(root / "raises", "\nraise ValueError('no kernel')"),
        "other_arguments": _project(
            root / "other_arguments", _OPS + _OUT.format(arguments="Tensor x, Tensor y, ")
        ),
        "no_library": _project(root / "no_library", "no library", "ops.so"),
        "undefined": _project(root / "undefined", "", "ops.so"),
    }
    code = 'extern "C" void at_old_name(); struct A { A() { at_old_name(); } } a;'
    _shared(code, root / "undefined" / "ops.so")
    jobs = []
    for name, spec in specs.items():
        (root / name / "program").mkdir()
        spec.save(root / name / "spec.json")
        jobs.append((str(root / name / "spec.json"), str(root / name / "program")))
    (root / "jobs.json").write_text(json.dumps(jobs))
    argv = (sys.executable, "-m", "tests.support.export_batch", str(root / "jobs.json"))
    outcome = run(Request(argv, cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    log = root / "log.txt"
    return {n: failure_error(Failure.load(root / n / "failure.json"), log) for n in specs}


def test_an_operator_that_nothing_registers(failures: dict[str, ExportError]) -> None:
    error = failures["unregistered"]
    assert "has no attribute 'twice'" in error.message
    assert "return torch.ops.mine.twice(x)" in error.message
    assert "--set export.custom_ops=" in (error.remedy or "")


def test_python_that_raises_is_shown_at_its_line(failures: dict[str, ExportError]) -> None:
    error = failures["raises"]
    assert error.message == (
        "importing ops.py raised ValueError: no kernel\n    raise ValueError('no kernel')"
    )
    assert (error.place or "").endswith("/raises/ops.py:2")


def test_an_output_variant_with_other_arguments(failures: dict[str, ExportError]) -> None:
    error = failures["other_arguments"]
    assert error.message.startswith("the operator mine::twice has the variant mine::twice.out(")
    assert error.remedy == (
        "Register it so:\n"
        'torch.library.define("mine::twice.out", "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")'
    )
    assert (error.place or "").endswith("/other_arguments/model.py:6")


def test_a_library_that_is_none(failures: dict[str, ExportError]) -> None:
    error = failures["no_library"]
    assert error.message.startswith("the library of custom operators cannot be loaded: OSError: ")
    assert "invalid ELF header" in error.message or "too short" in error.message
    assert (error.place or "").endswith("/no_library/ops.so")


def test_a_library_for_another_pytorch(failures: dict[str, ExportError]) -> None:
    message = failures["undefined"].message
    assert "it refers to at_old_name, which neither it nor PyTorch" in message
    assert "built for another PyTorch" in message


def test_a_library_registers_operators(tmp_path: Path) -> None:
    spec = _project(tmp_path / "p", "", "ops.so")
    torch = Path(sysconfig.get_paths()["purelib"]) / "torch"
    links = (f"-I{torch}/include", f"-L{torch}/lib", "-ltorch_cpu", "-lc10")
    _shared(_LIBRARY, tmp_path / "p" / "ops.so", *links)
    workspace = Workspace(tmp_path / "cache")
    made = export_program(spec, workspace, silent, tmp_path / "export.log")
    assert Program.load(_folder(made) / PROGRAM_INFO).operators == ("mine::twice.out",)
    assert program_key(spec, workspace) == made.key
    with (tmp_path / "p" / "ops.so").open("ab") as library:
        library.write(b"\0")
    assert program_key(spec, workspace) is None


def test_a_change_of_the_python_file_exports_again(
    example: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "p")
    spec = _recipe_spec(tmp_path / "p" / "recipe.yaml")
    assert program_key(_recipe_spec(EXAMPLE / "recipe.yaml"), export_workspace) == example.name
    export_program(spec, export_workspace, silent, tmp_path / "export.log")
    known = program_key(spec, export_workspace)
    assert known is not None
    with (tmp_path / "p" / "ops.py").open("a") as file:
        file.write("\n# changed\n")
    assert program_key(spec, export_workspace) is None
