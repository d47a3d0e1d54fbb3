"""Which files the kernels of a program are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.runner.kernel_sources import needed_sources

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


def test_an_operators_file_is_taken_and_no_other(checkout: Path) -> None:
    assert needed_sources(checkout, ["aten::add.out"]) == ("op_add.cpp",)


def test_files_that_are_called_into_come_along_through_all_steps(checkout: Path) -> None:
    """But not those that have a helper of the same name of their own."""
    assert needed_sources(checkout, ["aten::relu.out"]) == (
        "op_clamp.cpp",
        "op_finish.cpp",
        "op_relu.cpp",
    )


def test_a_kernel_that_a_macro_defines_is_found_by_its_name(checkout: Path) -> None:
    assert needed_sources(checkout, ["aten::bitwise_and.Tensor_out"]) == ("op_bitwise.cpp",)


def test_an_operator_with_its_whole_schema_is_found(checkout: Path) -> None:
    found = needed_sources(checkout, ["dim_order_ops::_to_dim_order_copy.out"])
    assert found == ("op__to_dim_order_copy.cpp",)


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
