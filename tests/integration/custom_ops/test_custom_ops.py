"""Custom operators from Python to the runner: exported, compiled, run and compared."""

from __future__ import annotations

import json
import platform
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError, EtdeployError
from etdeploy.core.processes.process import Request, run
from etdeploy.core.values import silent
from etdeploy.custom_ops.kernels import read_custom_ops
from etdeploy.export.derive import export_spec
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.run import export_program, failure_error
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import PROGRAM_INFO
from etdeploy.program.model import Program
from etdeploy.recipe.load import load_recipe
from etdeploy.runner.missing import check_program
from etdeploy.targets.platforms import host_target
from tests.support.cli import Cli
from tests.support.custom_ops import build_custom
from tests.support.export import program_key, run_python, spec_of
from tests.support.runtime_values import make_method, make_program

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

ROOT = Path(__file__).resolve().parents[3]
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


def _recipe_spec(recipe: str) -> ExportSpec:
    return export_spec(load_recipe(recipe).recipe, arch=platform.machine())


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(shared_cache: Path, tmp_path: Path) -> Cli:
    """Tests of this module share one cache, so that the example is exported once."""
    return Cli(shared_cache, tmp_path, {})


def _run(cli: Cli, recipe: Path | str, *arguments: str) -> Any:
    """The run record; with the outputs of PyTorch."""
    record = cli.ok("run", "--recipe", str(recipe), "--json", *arguments).json
    assert record["workload"]["outputs"]
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])
    return record


@pytest.mark.parametrize(
    "device", ["host", pytest.param("qemu", marks=[needs_cross, pytest.mark.nightly])]
)
def test_the_example_gives_the_outputs_of_pytorch(device: str, cli: Cli) -> None:
    record = _run(cli, EXAMPLE / "recipe.yaml", "--device", device)
    assert record["device"]["facts"]["name"] == device


@pytest.mark.nightly
def test_several_results_and_arguments_of_several_types(cli: Cli) -> None:
    bounds = DATA / "bounds"
    recipe = cli.recipe(
        f"model: {{python: '{bounds}/model.py:make'}}\n"
        f"export: {{backend: portable, custom_ops: '{bounds}/ops.py'}}\n"
        f"runtime: {{custom_ops: '{bounds}/kernels'}}\n"
    )
    # With the tracer, which is told of the kernel and its results.
    assert len(_run(cli, recipe)["workload"]["outputs"]) == 3


def test_an_operator_that_the_folder_does_not_list(cli: Cli) -> None:
    other = f"runtime.custom_ops={DATA}/every_type"
    result = cli("run", "--recipe", str(EXAMPLE / "recipe.yaml"), "--set", other)
    assert result.code == 5
    assert "fused::rms_norm.out" in result.stderr
    assert f"{DATA}/every_type does not list them" in result.stderr


def test_an_operator_that_the_sources_do_not_register(cli: Cli) -> None:
    other = f"runtime.custom_ops={DATA}/self_registering"
    result = cli("run", "--recipe", str(EXAMPLE / "recipe.yaml"), "--set", other)
    assert result.code == 5
    assert "operator fused::rms_norm.out" in result.stderr


def test_a_compiler_error_is_shown_with_the_kernels_file_and_line(cli: Cli) -> None:
    kernels = cli.folder / "kernels"
    shutil.copytree(EXAMPLE / "kernels", kernels)
    kernel = _changed(kernels, "float sum = 0", "flot sum = 0")
    other = ("--set", f"runtime.custom_ops={kernels}")
    result = cli("run", "--recipe", str(EXAMPLE / "recipe.yaml"), *other)
    assert result.code == 4
    place = f"{kernel}:{_line(kernel, 'flot sum')}:5"
    assert f"{place}: compiling the runner failed: error: " in result.stderr
    assert "Traceback" not in result.stderr
    _changed(kernels, "flot sum = 0", "float sum = 0")
    _run(cli, EXAMPLE / "recipe.yaml", *other)


@pytest.mark.parametrize(
    ("folder", "target", "operators"),
    [
        pytest.param(
            "every_type",
            None,
            ("every::four.out", "every::one.out", "every::three_", "every::two.out"),
            marks=pytest.mark.nightly,
        ),
        ("self_registering", None, ("self::scaled.out",)),
        ("own_target", "own_kernels", ("self::scaled.out",)),
    ],
)
def test_what_a_folder_registers_is_in_the_runner(
    folder: str, target: str | None, operators: tuple[str, ...], tmp_path: Path
) -> None:
    ops = read_custom_ops(DATA / folder, target)
    runner = build_custom(ops, tmp_path, *operators)
    assert set(operators) <= set(runner.operators)


@needs_cross
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("folder", "own_target", "target"),
    [
        ("self_registering", None, "linux-aarch64"),
        ("own_target", "own_kernels", "android-arm64"),
    ],
)
def test_what_registers_itself_is_found_in_a_runner_that_cannot_be_started(
    folder: str, own_target: str | None, target: str, tmp_path: Path, monkeypatch: Any
) -> None:
    _without_emulation(tmp_path / "bin", monkeypatch)
    ops = read_custom_ops(DATA / folder, own_target)
    called = ("self::scaled.out", "self::absent.out")
    runner = build_custom(ops, tmp_path, *called, target=target)
    assert runner.listed_by == "libraries"
    assert "self::scaled.out" in runner.operators
    # What is not registered is still told.
    program = make_program(make_method(operators=called))
    assert [m.what for m in check_program(program, runner)] == ["operator self::absent.out"]
    # A runner that was looked at for another program's operators is not taken for it.
    other = build_custom(ops, tmp_path, "self::absent.out", target=target)
    assert "self::scaled.out" not in other.operators
    assert "self::scaled.out" in build_custom(ops, tmp_path, *called, target=target).operators


def _without_emulation(tools: Path, monkeypatch: Any) -> None:
    tools.mkdir()
    for name in ("g++", "ld", "as", "ar", "ranlib"):
        program = f"aarch64-linux-gnu-{name}"
        (tools / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tools))


def _changed(kernels: Path, old: str, new: str) -> Path:
    kernel = kernels / "rms_norm.cpp"
    text = kernel.read_text()
    assert old in text
    kernel.write_text(text.replace(old, new))
    return kernel


def _line(kernel: Path, text: str) -> int:
    return next(i for i, line in enumerate(kernel.read_text().splitlines(), 1) if text in line)


def _broken(folder: Path, old: str, new: str) -> tuple[BuildError, Path]:
    """How the build fails after a change of the example's kernel, and the kernel."""
    shutil.copytree(EXAMPLE / "kernels", folder / "kernels")
    kernel = _changed(folder / "kernels", old, new)
    with pytest.raises(BuildError) as raised:
        build_custom(read_custom_ops(folder / "kernels"), folder, "fused::rms_norm.out")
    return raised.value, kernel


def test_an_error_in_a_header_is_shown_at_the_kernels_line(tmp_path: Path) -> None:
    error, kernel = _broken(tmp_path, "float sum = 0", "std::optional<float&> sum")
    assert "/optional:" in error.message
    assert (error.place or "").startswith(f"{kernel}:{_line(kernel, 'optional<float&>')}:")


def test_a_kernel_with_other_types_is_shown_at_the_line_of_the_list(tmp_path: Path) -> None:
    error, kernel = _broken(tmp_path, "double eps", "float eps")
    assert "undefined reference to" in error.message
    assert error.place == f"{kernel.parent}/ops.yaml:3"
    assert "rms_norm_out(" in (error.remedy or "")
    assert "double eps" in (error.remedy or "")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shared_kernels", "is a SHARED_LIBRARY; make it a STATIC or an OBJECT library"),
        ("absent", "has no target 'absent' (runtime.custom_ops_target)"),
    ],
)
def test_a_target_that_cannot_be_linked(target: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as raised:
        build_custom(read_custom_ops(DATA / "own_target", target), tmp_path)
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
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EtdeployError]:
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
    run_python("-m", "tests.support.export_batch", str(root / "jobs.json"))
    log = root / "log.txt"
    return {n: failure_error(ExportFailure.load(root / n / "failure.json"), log) for n in specs}


def test_an_operator_that_nothing_registers(failures: dict[str, EtdeployError]) -> None:
    error = failures["unregistered"]
    assert "has no attribute 'twice'" in error.message
    assert "return torch.ops.mine.twice(x)" in error.message
    assert "--set export.custom_ops=" in (error.remedy or "")


def test_python_that_raises_is_shown_at_its_line(failures: dict[str, EtdeployError]) -> None:
    error = failures["raises"]
    assert error.message == (
        "importing ops.py raised ValueError: no kernel\n    raise ValueError('no kernel')"
    )
    assert (error.place or "").endswith("/raises/ops.py:2")


def test_an_output_variant_with_other_arguments(failures: dict[str, EtdeployError]) -> None:
    error = failures["other_arguments"]
    assert error.message.startswith("the operator mine::twice has the variant mine::twice.out(")
    assert error.remedy == (
        "Register it so:\n"
        'torch.library.define("mine::twice.out", "(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")'
    )
    assert (error.place or "").endswith("/other_arguments/model.py:6")


def test_a_library_that_is_none(failures: dict[str, EtdeployError]) -> None:
    error = failures["no_library"]
    assert error.message.startswith("the library of custom operators cannot be loaded: OSError: ")
    assert "invalid ELF header" in error.message or "too short" in error.message
    assert (error.place or "").endswith("/no_library/ops.so")


def test_a_library_for_another_pytorch(failures: dict[str, EtdeployError]) -> None:
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
    assert Program.load(Path(made.folder) / PROGRAM_INFO).operators == ("mine::twice.out",)
    assert program_key(spec, workspace) == made.key
    with (tmp_path / "p" / "ops.so").open("ab") as library:
        library.write(b"\0")
    assert program_key(spec, workspace) is None


@pytest.mark.nightly
def test_a_change_of_the_python_file_exports_again(cli: Cli) -> None:
    shutil.copytree(EXAMPLE, cli.folder / "p")
    recipe = str(cli.folder / "p" / "recipe.yaml")
    assert cli.ok("export", "--recipe", recipe).code == 0
    workspace = Workspace(cli.cache)
    assert program_key(_recipe_spec(recipe), workspace) is not None
    with (cli.folder / "p" / "ops.py").open("a") as file:
        file.write("\n# changed\n")
    assert program_key(_recipe_spec(recipe), workspace) is None
