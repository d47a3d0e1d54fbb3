"""Which files the kernels of a program are in, and whether KleidiAI's sources can be had."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.plan.model import RuntimePlan
from etdeploy.runner.kernel_sources import (
    SOURCE_DIR,
    kleidiai_problem,
    needed_sources,
    require_kleidiai,
)
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_PORTABLE = """
- op: add.out
  kernels:
    - arg_meta: null
      kernel_name: torch::executor::add_out
- op: relu.out
  kernels: [{arg_meta: null, kernel_name: torch::executor::relu_out}]
- op: bitwise_and.Tensor_out
  kernels: [{arg_meta: null, kernel_name: torch::executor::bitwise_and_tensor_out}]
- op: elsewhere.out
  kernels: [{arg_meta: null, kernel_name: torch::executor::elsewhere_out}]
- op: empty.out
- func: dim_order_ops::_to_dim_order_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  kernels: [{arg_meta: null, kernel_name: torch::executor::_to_dim_order_copy_out}]
"""
_OPTIMIZED = """
- op: add.out
  kernels: [{arg_meta: null, kernel_name: torch::executor::opt_add_out}]
"""
_FILES = {
    "portable/cpu/op_add.cpp": "Tensor& add_out(Ctx& ctx, const Tensor& a, Tensor& out) {\n}\n",
    "portable/cpu/op_relu.cpp": (
        "namespace {\nbool check(int x) { return x; }\n}\n"
        "Tensor& relu_out(\n    Ctx& ctx, Tensor& out) {\n  return clamp_into(check(1), out);\n}\n"
    ),
    "portable/cpu/op_clamp.cpp": (
        "bool check(int x) { return x; }\nTensor& clamp_into(bool a, Tensor& out) {\n"
        "  return finish(out);\n}\n"
    ),
    "portable/cpu/op_finish.cpp": (
        "bool check(int x) { return x; }\nTensor& finish(Tensor& out) {\n}\n"
    ),
    "portable/cpu/op_bitwise.cpp": "DEFINE_BITWISE(bitwise_and_tensor_out, &)\n",
    "portable/cpu/op__to_dim_order_copy.cpp": (
        "Tensor& _to_dim_order_copy_out(Ctx& ctx, Tensor& out) {\n}\n"
    ),
    "portable/cpu/op_unused.cpp": "Tensor& unused_out(Tensor& out) {\n}\n",
    "portable/cpu/helper.cpp": "Tensor& elsewhere_out(Tensor& out) {\n}\n",
    "optimized/cpu/op_add.cpp": "Tensor& opt_add_out(Ctx& ctx, Tensor& out) {\n}\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        "portable/functions.yaml": _PORTABLE,
        "optimized/optimized.yaml": _OPTIMIZED,
        **_FILES,
    }
    for name, text in files.items():
        path = tmp_path / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_files_that_are_called_into_come_along_through_all_steps(checkout: Path) -> None:
    """But not those that have a helper of the same name of their own."""
    assert needed_sources(checkout, ["aten::relu.out"]) == (
        "op_clamp.cpp",
        "op_finish.cpp",
        "op_relu.cpp",
    )


def test_a_kernel_that_a_macro_defines_is_found_by_its_name(checkout: Path) -> None:
    assert needed_sources(checkout, ["aten::bitwise_and.Tensor_out"]) == ("op_bitwise.cpp",)


def test_several_operators_are_one_sorted_list(checkout: Path) -> None:
    names = ["dim_order_ops::_to_dim_order_copy.out", "aten::add.out"]
    assert needed_sources(checkout, names) == ("op__to_dim_order_copy.cpp", "op_add.cpp")
    assert needed_sources(checkout, []) == ()


@pytest.mark.parametrize(
    "name",
    [
        "aten::absent.out",  # not listed
        "aten::empty.out",  # listed without a kernel
        "aten::elsewhere.out",  # defined in a file of another kind
    ],
)
def test_all_files_are_compiled_where_one_operator_is_not_understood(
    name: str, checkout: Path
) -> None:
    assert needed_sources(checkout, ["aten::add.out", name]) is None


@pytest.mark.parametrize("text", ["- op: [", "just a text", "- 1\n- 2\n", "\t", None])
def test_a_list_that_cannot_be_read_means_all(text: str | None, checkout: Path) -> None:
    file = checkout / "kernels" / "portable" / "functions.yaml"
    file.unlink() if text is None else file.write_text(text)
    assert needed_sources(checkout, ["aten::relu.out"]) is None


_PROGRAM = make_program(make_method(delegates=("XnnpackBackend",)))
_DOWNLOAD = "backends/xnnpack/third-party/XNNPACK/cmake/DownloadKleidiAI.cmake"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def _plan(target: str = "android-arm64", **runtime: object) -> RuntimePlan:
    recipe = make_recipe(runtime={"provider": "source", "kleidiai": True, **runtime})
    return make_plan(recipe, _PROGRAM, target)


def _xnnpack(folder: Path, port: int) -> Path:
    file = folder / _DOWNLOAD
    file.parent.mkdir(parents=True)
    file.write_text(
        f"ExternalProject_Add(kleidiai\n  URL http://127.0.0.1:{port}/kleidiai.zip\n)\n"
    )
    return folder


def test_a_host_that_does_not_answer_is_told_with_both_ways_out(
    tmp_path: Path, closed_port: int
) -> None:
    found = kleidiai_problem(_plan(), _xnnpack(tmp_path, closed_port), tmp_path / "cmake")
    assert found is not None
    assert f"127.0.0.1:{closed_port}" in found.why
    assert "Connection refused" in found.why
    assert "runtime.kleidiai=false" in found.remedy
    assert f"--set runtime.cmake.{SOURCE_DIR}=" in found.remedy
    assert f"http://127.0.0.1:{closed_port}/kleidiai.zip" in found.remedy
    with pytest.raises(BuildError, match="cannot be reached"):
        require_kleidiai(_plan(), _xnnpack(tmp_path / "again", closed_port), tmp_path / "cmake")


def test_a_host_that_keeps_silent_is_waited_for_a_short_time(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etdeploy.runner.kernel_sources._PROBE_S", 0.05)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: threading.Event().wait())
    found = kleidiai_problem(_plan(), _xnnpack(tmp_path, closed_port), tmp_path / "cmake")
    assert found is not None
    assert found.why.endswith("no answer within 0.05 s")


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_is_asked_in_place_of_the_host(
    variable: str, tmp_path: Path, open_port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://user:secret@127.0.0.1:{open_port}")
    checkout = _xnnpack(tmp_path, closed_port)
    assert kleidiai_problem(_plan(), checkout, tmp_path / "cmake") is None
    monkeypatch.setenv(variable, f"127.0.0.1:{closed_port}")
    found = kleidiai_problem(_plan(), _xnnpack(tmp_path / "b", open_port), tmp_path / "cmake")
    assert found is not None
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert kleidiai_problem(_plan(), tmp_path / "b", tmp_path / "cmake") is None


def test_an_earlier_download_of_the_same_release_is_enough(
    tmp_path: Path, closed_port: int
) -> None:
    checkout, cmake = _xnnpack(tmp_path / "executorch", closed_port), tmp_path / "cmake"
    (cmake / "kleidiai-download").mkdir(parents=True)
    told = cmake / "kleidiai-download" / "CMakeLists.txt"
    told.write_text((checkout / _DOWNLOAD).read_text())
    # What a download that failed leaves.
    (cmake / "kleidiai-source").mkdir()
    assert kleidiai_problem(_plan(), checkout, cmake) is not None
    (cmake / "kleidiai-source" / "CMakeLists.txt").write_text("")
    assert kleidiai_problem(_plan(), checkout, cmake) is None
    told.write_text(told.read_text().replace("kleidiai.zip", "older.zip"))
    assert kleidiai_problem(_plan(), checkout, cmake) is not None


def test_sources_that_are_given_have_to_be_there(tmp_path: Path, closed_port: int) -> None:
    checkout = _xnnpack(tmp_path / "executorch", closed_port)
    given = tmp_path / "my kleidiai"
    plan = _plan(cmake={SOURCE_DIR: str(given)})
    found = kleidiai_problem(plan, checkout, tmp_path / "cmake")
    assert found is not None
    assert f"{SOURCE_DIR} is {given}" in found.why
    assert f"--set runtime.cmake.{SOURCE_DIR}=" in found.remedy
    given.mkdir()
    (given / "CMakeLists.txt").write_text("")
    assert kleidiai_problem(plan, checkout, tmp_path / "cmake") is None


@pytest.mark.parametrize(
    ("target", "runtime"),
    [
        ("android-arm64", {"kleidiai": False}),
        ("android-arm64", {"cmake": {"XNNPACK_ENABLE_KLEIDIAI": False}}),
        ("linux-x86_64", {}),
    ],
)
def test_nothing_is_asked_where_it_is_not_built(
    target: str, runtime: dict[str, object], tmp_path: Path, closed_port: int
) -> None:
    plan = _plan(target, **runtime)
    assert kleidiai_problem(plan, _xnnpack(tmp_path, closed_port), tmp_path / "cmake") is None
