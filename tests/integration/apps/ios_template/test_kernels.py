"""The recipe's own kernels in an iPhone app: compiled as a project does it, and registered."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import executorch
import pytest

from etdeploy.apps.ios.platform import Ios, ios_app
from tests.support.golden_apps import app_subject
from tests.support.ios_template import HEADERS
from tests.support.runtime_values import make_method, make_program, make_recipe

pytestmark = pytest.mark.integration

_OP = "fused::rms_norm.out"
_KERNELS = Path(__file__).parents[4] / "examples/custom_op/kernels"
_MAIN = """
#include <cstdio>
#include <executorch/runtime/kernel/operator_registry.h>
int main() {
  for (const char* name : {"fused::rms_norm.out", "fused::other.out"}) {
    const auto found = executorch::runtime::get_op_function_from_registry(name);
    std::printf("%s %d\\n", name, int(found.ok()));
  }
}
"""


def test_kernels_compile_with_the_headers_of_the_package_and_are_registered(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    given = app_subject(Ios(), "convnet")
    recipe = make_recipe(runtime={"custom_ops": str(_KERNELS)})
    subject = replace(
        given,
        program=make_program(make_method(operators=(_OP,))),
        loaded=replace(given.loaded, recipe=recipe),
    )
    app = ios_app(subject)
    for path, content in Ios().files(subject).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(
            content if isinstance(content, bytes) else content.read_bytes()
        )
    sources = tmp_path / app.target
    (sources / "main.cpp").write_text(_MAIN)
    installed = Path(next(iter(executorch.__path__)))
    # In the project's order, with the wheel's headers in the place of the package's.
    own = [sources / name for name in ("Kernels", "Kernels/include", "KernelSupport")]
    include = [f"-I{folder}" for folder in (*own, *(installed / name for name in HEADERS))]
    options = ["-std=gnu++17", "-DC10_USING_CUSTOM_GENERATED_MACROS", *include]
    command = [compiler, *options, *app.kernel_sources, "main.cpp", "-o", "list"]
    libraries = ["-L", str(installed / "lib"), "-lexecutorch", f"-Wl,-rpath,{installed / 'lib'}"]
    subprocess.run([*command, *libraries], cwd=sources, check=True)
    listed = subprocess.run(["./list"], cwd=sources, check=True, capture_output=True, text=True)
    assert listed.stdout == f"{_OP} 1\nfused::other.out 0\n"
    # The one header that the package lacks is the project's.
    read = subprocess.run(
        [compiler, *options, "-M", "Kernels/rms_norm.cpp"],
        cwd=sources, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    [header] = (path for path in read if path.endswith("/kernel_includes.h"))
    assert Path(header).is_relative_to(sources / "KernelSupport")
