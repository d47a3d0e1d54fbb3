"""Folders of custom kernels: what is read from them, what is written for them, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.custom_ops.kernels import (
    CustomOps,
    find_kernel_error,
    read_custom_ops,
    write_registration,
)
from etdeploy.custom_ops.yaml_file import SchemaError, parse_schema

_OUT = "*, Tensor(a!) out) -> Tensor(a!)"
_TWICE = f"my::twice.out(Tensor x, {_OUT}"
_YAML = """\
# comments are allowed
- func: {schema}
  kernels:
    - arg_meta: null
      kernel_name: {kernel}
"""


def _folder(root: Path, **files: str) -> Path:
    folder = root / "kernels"
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _listed(root: Path, schema: str = _TWICE, kernel: str = "my::twice_out") -> Path:
    yaml = _YAML.format(schema=schema, kernel=kernel)
    return _folder(root, ops_dot_yaml=yaml, twice_dot_cpp="// kernel")


@pytest.fixture
def ops(tmp_path: Path) -> CustomOps:
    return read_custom_ops(_listed(tmp_path))


@pytest.mark.parametrize(
    ("schema_type", "cpp_type", "accessor"),
    [
        ("Tensor", "const A::Tensor&", "to<A::Tensor>()"),
        ("Tensor?", "const ::std::optional<A::Tensor>&", "toOptional<A::Tensor>()"),
        ("Tensor[]", "A::ArrayRef<A::Tensor>", "to<A::ArrayRef<A::Tensor>>()"),
        ("Tensor?[]", "A::ArrayRef<::std::optional<A::Tensor>>", "toListOptionalTensor()"),
        ("int", "int64_t", "to<int64_t>()"),
        ("SymInt?", "::std::optional<int64_t>", "toOptional<int64_t>()"),
        ("int[2]", "A::ArrayRef<int64_t>", "to<A::ArrayRef<int64_t>>()"),
        (
            "SymInt[]?",
            "::std::optional<A::ArrayRef<int64_t>>",
            "toOptional<A::ArrayRef<int64_t>>()",
        ),
        ("float", "double", "to<double>()"),
        ("float[]", "A::ArrayRef<double>", "to<A::ArrayRef<double>>()"),
        ("bool[3]", "A::ArrayRef<bool>", "to<A::ArrayRef<bool>>()"),
        ("str", "::std::string_view", "to<::std::string_view>()"),
        ("Scalar", "const A::Scalar&", "to<A::Scalar>()"),
        ("Scalar?", "const ::std::optional<A::Scalar>&", "toOptional<A::Scalar>()"),
        ("ScalarType?", "::std::optional<A::ScalarType>", "toOptional<A::ScalarType>()"),
        ("Tensor(b!)", "A::Tensor&", "to<A::Tensor>()"),
        ("Tensor(b)", "const A::Tensor&", "to<A::Tensor>()"),
    ],
)
def test_a_type_of_a_schema_as_kernels_have_it(
    schema_type: str, cpp_type: str, accessor: str
) -> None:
    argument = parse_schema(f"my::op.out({schema_type} x, {_OUT}").arguments[0]
    system = "::executorch::aten"
    assert argument.cpp_type.replace(system, "A") == cpp_type
    assert argument.accessor.replace(system, "A") == accessor


def test_defaults_and_names_of_results_are_passed_over() -> None:
    schema = parse_schema(
        "my::op.out(Tensor x, int[2] pad=[0, 0], str mode='a, (b)', float eps=1e-05, int? n=None, "
        "*, Tensor(a!) low, Tensor(b!) high) -> (Tensor(a!) low, Tensor(b!) high)"
    )
    assert [a.name for a in schema.arguments] == ["x", "pad", "mode", "eps", "n", "low", "high"]
    assert [a.output for a in schema.arguments] == [False] * 5 + [True] * 2
    assert schema.full_name == "my::op.out"
    assert schema.cpp_return == "::std::tuple<{0}, {0}>".format("::executorch::aten::Tensor&")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("twice.out(Tensor x)", "'::' is expected after the namespace twice, not '.'"),
        ("my::twice", r"'\(' is expected after the operator's name, not the end"),
        (f"my::twice.out(Tensor x Tensor y, {_OUT}", "',' is expected between arguments"),
        (f"my::twice.out(Tensor, {_OUT}", "the name of an argument of the type Tensor is expected"),
        (f"my::twice.out(Tensor x, int x, {_OUT}", "duplicate argument x"),
        (f"my::twice.out(Generator? g, {_OUT}", "has no type Generator; it has int, "),
        (f"my::twice.out(str[] x, {_OUT}", "has no lists of str"),
        (f"my::twice.out(int?[] x, {_OUT}", r"has no lists int\?\[\]"),
        (f"my::twice.out(int(b!) x, {_OUT}", "x is written to but is not a tensor"),
        (f"my::twice.out(Tensor(a! x, {_OUT}", "'\\)' is expected after an alias, not 'x'"),
        ("my::twice(Tensor x) -> Tensor", "an operator returns the tensors that it writes to"),
        ("my::size(Tensor x) -> int", "an operator returns the tensors that it writes to"),
        ("my::twice(Tensor x) -> ()", "it writes to no tensor"),
        ("my::op.out(Tensor x, *, Tensor(a!) a, Tensor(b!) b) -> Tensor(a!)", "returns 1 values"),
        ("my::zero_(Tensor(a!) x) -> ()", "no output argument and returns nothing"),
        (f"{_TWICE} out twice", "'twice' follows the returned values"),
        ("my::twice.out(Tensor x, %) -> Tensor", "is not valid"),
        ("", "the namespace is expected, not the end"),
    ],
)
def test_a_schema_that_cannot_be_served(schema: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(schema)


def test_a_folder_with_a_list_of_operators(ops: CustomOps, tmp_path: Path) -> None:
    assert ops.operators == frozenset({"my::twice.out"})
    assert ops.sources == ("twice.cpp",)
    build = tmp_path / "build"
    path = write_registration(ops, build)
    assert ops.definitions(build) == {
        "ETDEPLOY_CUSTOM_OPS": str(tmp_path / "kernels"),
        "ETDEPLOY_CUSTOM_OPS_SOURCES": "twice.cpp",
        "ETDEPLOY_CUSTOM_OPS_REGISTRATION": str(path),
    }


def test_the_registration_declares_unboxes_and_registers(ops: CustomOps, tmp_path: Path) -> None:
    path = write_registration(ops, tmp_path)
    code = path.read_text() if path else ""
    tensor = "::executorch::aten::Tensor"
    assert (
        f"namespace my::native {{\n{tensor}& twice_out(::executorch::runtime::KernelRuntimeContext&"
        f", const {tensor}&, {tensor}&);" in code
    )
    assert (
        f"::my::native::twice_out(context, stack[0]->to<{tensor}>(), stack[1]->to<{tensor}>());"
        in code
    )
    assert 'Kernel("my::twice.out", call_0)' in code
    assert "stack.size() != 3" in code
    assert str(tmp_path) not in code


def test_the_digest_follows_what_is_compiled_and_not_the_folder(tmp_path: Path) -> None:
    first = read_custom_ops(_listed(tmp_path / "a"))
    folder = _listed(tmp_path / "b")
    assert read_custom_ops(folder).digest == first.digest
    (folder / "README.md").write_text("about these kernels")
    assert read_custom_ops(folder).digest == first.digest
    (folder / "include").mkdir()
    (folder / "include" / "table.h").write_text("// new")
    changed = read_custom_ops(folder).digest
    assert changed != first.digest
    (folder / "twice.cpp").write_text("// another kernel")
    assert read_custom_ops(folder).digest not in (first.digest, changed)


def test_sources_are_found_below_but_for_hidden_ones_and_build_trees(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        arm__neon_dot_cc="//",
        plain_dot_c="//",
        build__CMakeCache_dot_txt="",
        build__generated_dot_cpp="//",
    )
    (folder / ".hidden.cpp").write_text("//")
    ops = read_custom_ops(folder)
    assert ops.sources == ("arm/neon.cc", "plain.c")
    assert ops.operators is None
    assert write_registration(ops, tmp_path) is None
    assert "ETDEPLOY_CUSTOM_OPS_REGISTRATION" not in ops.definitions(tmp_path)


def test_yaml_files_about_other_things_are_left_alone(tmp_path: Path) -> None:
    folder = _listed(tmp_path)
    (folder / "recipe.yaml").write_text("model: {example: mlp}\n")
    (folder / "empty.yml").write_text("# nothing\n")
    assert read_custom_ops(folder).operators == frozenset({"my::twice.out"})


def test_a_folder_with_a_cmake_target(tmp_path: Path) -> None:
    folder = _folder(tmp_path, CMakeLists_dot_txt="project(x)", src__a_dot_cpp="//")
    ops = read_custom_ops(folder, "kernels")
    assert ops.definitions(tmp_path) == {
        "ETDEPLOY_CUSTOM_OPS": str(folder),
        "ETDEPLOY_CUSTOM_OPS_TARGET": "kernels",
    }
    assert ops.operators is None
    assert read_custom_ops(folder, "others").digest != ops.digest
    (folder / "data.txt").write_text("a file that its CMakeLists.txt may read")
    assert read_custom_ops(folder, "kernels").digest != ops.digest


def test_a_cmake_target_registers_itself_what_the_yaml_lists(tmp_path: Path) -> None:
    by_type = "- func: {}\n  kernels:\n    - arg_meta: {{self_type: T0}}\n      kernel_name: f\n"
    folder = _folder(tmp_path, CMakeLists_dot_txt="", ops_dot_yaml=by_type.format(_TWICE))
    ops = read_custom_ops(folder, "kernels")
    assert ops.operators == frozenset({"my::twice.out"})
    assert write_registration(ops, tmp_path) is None


def _refused(folder: Path, target: str | None = None) -> BuildError:
    with pytest.raises(BuildError) as raised:
        read_custom_ops(folder, target)
    return raised.value


@pytest.mark.parametrize(
    ("files", "target", "message"),
    [
        ({"notes_dot_txt": ""}, None, "no C++ sources"),
        ({"CMakeLists_dot_txt": "", "a_dot_cpp": ""}, None, "no yaml file"),
        ({"a_dot_cpp": ""}, "kernels", "no CMakeLists.txt"),
    ],
)
def test_a_folder_without_kernels(
    files: dict[str, str], target: str | None, message: str, tmp_path: Path
) -> None:
    folder = _folder(tmp_path, **files)
    error = _refused(folder, target)
    assert message in error.message
    assert error.place == str(folder)
    assert error.remedy
    gone = _refused(tmp_path / "gone", target)
    assert gone.place == f"{tmp_path}/gone"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("- func: my::f.out(Tensor x)\n", 1, "'->'"),
        (f"- op: add.out\n- func: {_TWICE}\n", 1, "add.out: "),
        ("- kernels: []\n", 1, "the entry has no key `func`"),
        (f"- func: {_TWICE}\n", 1, "exactly one kernel"),
        (f"- func: {_TWICE}\n  kernels: f\n", 2, "exactly one kernel"),
        (f"- func: {_TWICE}\n  kernel: f\n  kernels: []\n", 2, "unknown key 'kernel'"),
        (f"- func: {_TWICE}\n  func: x\n", 2, "func appears twice"),
        (
            f"- func: {_TWICE}\n  kernels:\n    - arg_meta: {{self: T0}}\n      kernel_name: a::f",
            3,
            "single data types",
        ),
        (
            f"- func: {_TWICE}\n  kernels:\n    - arg_meta: null\n      kernel_name: twice_out\n",
            4,
            "not 'twice_out'",
        ),
        (
            f"- func: {_TWICE}\n  kernels:\n    - arg_meta: null\n",
            3,
            "kernel_name must be a function",
        ),
        (f"\nfunc: {_TWICE}\n", 2, "the operators must be in a list"),
        ("- my::twice.out\n", 1, "an entry must be a mapping"),
        ("- func: [\n", 2, "this is not YAML: "),
    ],
)
def test_an_entry_that_cannot_be_served_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    folder = _folder(tmp_path, ops_dot_yaml=text, a_dot_cpp="")
    error = _refused(folder)
    assert message in error.message
    assert error.place == f"{folder}/ops.yaml:{line}"


def test_an_operator_that_is_listed_twice(tmp_path: Path) -> None:
    folder = _listed(tmp_path)
    (folder / "more.yaml").write_text((folder / "ops.yaml").read_text())
    error = _refused(folder)
    assert error.message == f"my::twice.out is listed already, at {folder}/more.yaml:2"
    assert error.place == f"{folder}/ops.yaml:2"


_HEADER = "/include/executorch/tensor.h:99:3: error: static assertion failed"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (["{own}:20:9: fatal error: x.h: No such file"], "20:9"),
        (["{own}:3:1: warning: unused", "{own}:7:2: error: no", "{own}:8:2: error: no"], "7:2"),
        (["In file included from {own}:2:", _HEADER], "2"),
        (["{own}:17:5:   required from here", _HEADER, "{own}:30:1: error: no"], "17:5"),
        ([_HEADER, "{own}:17:5: note: requested here", "{own}:19:5: note: too"], "17:5"),
        (["{own}:3:1: warning: unused", _HEADER, "{own}:17:5: note: requested here"], "17:5"),
    ],
)
def test_the_kernels_own_line_is_found(ops: CustomOps, said: list[str], line: str) -> None:
    own = f"{ops.folder}/twice.cpp"
    lines = [
        "[1/3] Building CXX object main.cpp.o",
        f"{own}:3:1: error: of a step that was tried again",
        "[2/3] Building CXX object twice.cpp.o",
        "FAILED: twice.cpp.o",
        f"/usr/bin/c++ -I{ops.folder} -c {own}",
        *(text.format(own=own) for text in said),
        "[3/3] Building CXX object other.cpp.o",
        f"{own}:44:1: error: of another step",
    ]
    found = find_kernel_error(ops, lines)
    assert found is not None
    assert (found.place, found.remedy) == (f"{own}:{line}", None)


@pytest.mark.parametrize(
    "line",
    [
        "r.cpp:(.text+0x1): undefined reference to `my::native::twice_out(exec::Context&, T&)'",
        "ld.lld: error: undefined symbol: my::native::twice_out(exec::Context&, T const&)",
    ],
)
def test_a_kernel_that_is_not_defined_is_found_in_the_list(ops: CustomOps, line: str) -> None:
    found = find_kernel_error(ops, ["FAILED: etdeploy-runner", line])
    assert found is not None
    assert found.place == f"{ops.folder}/ops.yaml:2"
    assert (found.remedy or "").endswith(
        "\nexecutorch::aten::Tensor& my::native::twice_out("
        "executorch::runtime::KernelRuntimeContext& context, "
        "const executorch::aten::Tensor& x, executorch::aten::Tensor& out)"
    )
