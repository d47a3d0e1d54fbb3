"""The C++ library: a CMake package with a model, its class and its part of ExecuTorch."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from etdeploy.apps.library import (
    ArrayType,
    Language,
    LibraryValue,
    Signature,
    class_values,
    signature,
)
from etdeploy.apps.model import MODEL_FILE, AppModel, AppValue, Payload
from etdeploy.apps.project import render_tree
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError, CheckError, require
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.values import Progress
from etdeploy.custom_ops.kernels import CustomOps
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.model import Program
from etdeploy.provider.checkout import Libraries
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.build_tree import open_tree
from etdeploy.runner.builder import own_kernels, tree_definitions
from etdeploy.runner.compile import compile_runner, configure, wheel_definitions
from etdeploy.runner.fingerprint import compiler_digest, toolchain_for
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.toolchains import BuildTools, find_cache, find_programs, find_tools
from etdeploy.targets.platforms import Target, find_target

KIND = "cpp library"
VERSION = "1.0.0"
_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires return short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true try
typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
_TAKEN_WORDS = """
add assert checked errno guarded kind_of model output sizes stderr stdin stdout text values
"""


def _vector(element: str, converter: str = "") -> ArrayType:
    number = converter or f"number<{element}>"
    return ArrayType(f"std::vector<{element}>", f"values<{element}>", f"read<{element}>", number)


CPP = Language(
    "C++",
    frozenset(_WORDS.split()),
    {
        "float32": _vector("float"),
        "float64": _vector("double"),
        "float16": _vector("uint16_t", "half"),
        "bfloat16": _vector("uint16_t", "brain"),
        "bool": _vector("uint8_t"),
        **{name: _vector(f"{name}_t") for name in ("uint8", "uint16", "uint32")},
        **{name: _vector(f"{name}_t") for name in ("int8", "int16", "int32", "int64")},
    },
    {"Int": "int64_t", "Double": "double", "Bool": "bool"},
    snake=True,
    # Functions and macros that the generated code or C's headers have by these names.
    taken=frozenset(_TAKEN_WORDS.split()),
)
_SYSTEMS = {"linux": "Linux", "android": "Android", "macos": "Darwin"}
_PROCESSORS = {"x86_64": "x86_64|AMD64|amd64", "aarch64": "aarch64|arm64"}


@dataclass(frozen=True)
class CppSubject:
    """What the library is made of: `runner` is the one that was checked with the program."""

    loaded: LoadedRecipe
    program: Program
    model: AppModel
    payload: Payload
    plan: RuntimePlan
    libraries: Libraries
    runner: BuiltRunner

    @property
    def target(self) -> Target:
        return find_target(self.plan.build_target)


_TARGETS = "Name another one: --target linux-x86_64, linux-aarch64, android-arm64 or macos-arm64"


def require_library(target: Target, *, generates: bool) -> None:
    """Raise CheckError unless a shared library with the model can be made for the target.

    `generates`: it is a language model.
    """
    if generates:
        raise CheckError(
            "a C++ library runs one method, and has neither a tokenizer nor the loop that "
            "generates text",
            remedy="For an app: etdeploy app library android, or ios\n"
            "For C++: ExecuTorch's TextLLMRunner, or the runner of etdeploy build as a process",
        )
    if target.static or target.system not in _SYSTEMS:
        raise CheckError(f"a {target.name} program loads no shared library", remedy=_TARGETS)


def require_no_own_c_library(plan: RuntimePlan) -> None:
    """Raise CheckError if what the plan builds brings its own C library."""
    if plan.portable_runner:
        raise CheckError(
            f"{plan.target} is for a runner that brings its own C library, which a library in "
            "another program cannot do",
            remedy=f"{_TARGETS}; on Android, with an NDK: --set runtime.provider=source",
        )


def library_files(
    subject: CppSubject,
    host: Target,
    workspace: Workspace,
    custom_ops: CustomOps | None,
    progress: Progress,
    log: Path | None,
) -> tuple[dict[str, bytes | Path], Signature]:
    """Return every file of the package by its path, the built ones included."""
    made = signature(subject.model, subject.program, CPP)
    values = _values(subject, made)
    name, files = str(values["target"]), dict[str, bytes | Path]()
    app = SimpleNamespace(**values)
    files |= render_tree(resource_folder("templates") / "cpp_library", {"app": app})
    files |= _payload_files(subject, name)
    files |= _licences(subject.libraries, name)
    for library in subject.runner.libraries:
        files[f"lib/{library}"] = Path(subject.runner.path) / library
    with tempfile.TemporaryDirectory(prefix="etdeploy-library-") as temporary:
        folder = Path(temporary)
        for path, content in files.items():
            if path.startswith(("include/", "src/")) and isinstance(content, bytes):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
        build = LibraryBuild(subject, host, workspace, custom_ops, folder, name, progress, log)
        files[f"lib/{values['library_file']}"] = build.compile(str(values["library_file"]))
    return files, made


def _payload_files(subject: CppSubject, name: str) -> Iterator[tuple[str, bytes | Path]]:
    for path, content in subject.payload.items():
        if path == PROGRAM_FILE:
            yield f"share/{name}/{path}", content
        elif path != MODEL_FILE:
            yield f"example/golden/{path}", content


def _licences(libraries: Libraries, name: str) -> Iterator[tuple[str, bytes | Path]]:
    """Notices that the package of ExecuTorch has, or its checkout with what is built from it."""
    if libraries.wheel:
        root = Path(libraries.wheel.root).parent
        found = sorted(root.glob(f"executorch-{libraries.version}*.dist-info/licenses/*"))
        notices = {path.name: path for path in found}
    else:
        folder = libraries.checkout.folder if libraries.checkout else Path()
        notices = {path.name: path for path in sorted(folder.glob("LICENSE*"))}
        for path in sorted(folder.glob("backends/*/third-party/*/LICENSE*")):
            notices[f"{path.parent.name}-{path.name}"] = path
    for file, path in notices.items():
        if path.is_file():
            yield f"share/{name}/licenses/executorch/{file}", path


@dataclass(frozen=True)
class LibraryBuild:
    """One build of the shared library."""

    subject: CppSubject
    host: Target
    workspace: Workspace
    custom_ops: CustomOps | None
    folder: Path
    name: str
    progress: Progress
    log: Path | None

    def compile(self, built: str) -> bytes:
        own = {"ETDEPLOY_LIBRARY": str(self.folder), "ETDEPLOY_LIBRARY_NAME": self.name}
        sources = resource_folder("templates") / "cpp_runtime"
        plan, libraries, target = self.subject.plan, self.subject.libraries, self.subject.target
        if libraries.wheel:
            tools = require(find_tools(target, self.host))
            definitions = wheel_definitions(plan, libraries.wheel, tools)
            definitions |= own_kernels(self.custom_ops, self.folder) | own
            cmake = self.folder / "cmake"
            configure(definitions, tools, sources, cmake, self.progress, self.log)
            return compile_runner(tools, cmake, self.progress, self.log, built).read_bytes()
        if libraries.checkout is None:
            raise BuildError("neither wheel nor checkout is given")
        toolchain = require(toolchain_for(plan, target, self.host, libraries.checkout))
        tools = BuildTools(*require(find_programs()), toolchain.compiler, None)
        if not toolchain.caches:
            tools = replace(tools, ccache=find_cache())
        compiler = compiler_digest(self.host, target)
        # Not the runner's folder: this one's code is position-independent.
        with open_tree(
            self.workspace, f"{target.name}-library", libraries.checkout, compiler, self.progress
        ) as tree:
            program = self.subject.payload.get(PROGRAM_FILE)
            definitions = tree_definitions(
                plan, tree, tools, toolchain, program if isinstance(program, Path) else None,
                self.custom_ops,
            )  # fmt: skip
            definitions |= own
            tree.forget()
            configure(definitions, tools, sources, tree.cmake, self.progress, self.log, fresh=True)
            return compile_runner(tools, tree.cmake, self.progress, self.log, built).read_bytes()


def _values(subject: CppSubject, made: Signature) -> dict[str, Any]:
    target = subject.target
    base = class_values(subject.loaded, subject.model)
    name = str(base["target"])
    suffix = "dylib" if target.system == "macos" else "so"
    return {
        **base,
        "id": subject.model.app_id,
        "workload": "inference",
        "namespace": f"{'_'.join(re.findall(r'[a-z0-9]+', subject.loaded.name.lower()))}_model",
        "macro": f"{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).upper()}_API",
        "version": VERSION,
        "executorch_version": subject.libraries.version,
        "components": subject.plan.component_names,
        "platform": target.name,
        "system": _SYSTEMS[target.system],
        "processors": _PROCESSORS[target.arch],
        "library_file": f"lib{name}.{suffix}",
        **cpp_values(made, subject.model),
    }


def cpp_values(made: Signature, model: AppModel) -> dict[str, Any]:
    """What the template of a C++ library gets of a signature."""
    by_index = {value.index: value for value in made.inputs}
    return {
        "inputs": [_input(value) for value in made.inputs],
        "outputs": [_output(value) for value in made.outputs],
        "fill": [_fill(by_index.get(index)) for index in range(len(model.sizes[0].inputs))],
        "zeros": [text for case in made.cases[:1] for each in case.inputs for text in _zero(*each)],
        "sizes": [
            {
                "arguments": [text for each in case.inputs for text in _argument(*each)],
                "expected": [_expected(*each) for each in case.expected],
            }
            for case in made.cases
        ],
    }


def _input(value: LibraryValue) -> Mapping[str, Any]:
    if value.kind != "Tensor":
        return value.model_dump() | {"parameter": f"{value.type} {value.name}"}
    parameter = f"const {value.type}& {value.name}"
    if value.shape_name:
        parameter += f", const std::vector<int64_t>& {value.shape_name}"
    largest = " x ".join(map(str, value.shape))
    return value.model_dump() | {"parameter": parameter, "largest": largest}


def _fill(value: LibraryValue | None) -> str:
    """The line that adds an input; one without a name is None."""
    if value is None:
        return "inputs_.values.emplace_back();"
    if value.kind != "Tensor":
        return f"inputs_.values.emplace_back({value.name});"
    shape = value.shape_name or f"Shape{{{', '.join(map(str, value.shape))}}}"
    return f'add(inputs_, *impl_->meta, {value.index}, "{value.name}", {value.name}, {shape});'


def _output(value: LibraryValue) -> Mapping[str, Any]:
    at = f"results_->at({value.index})"
    reader = {"Int": "toInt", "Double": "toDouble", "Bool": "toBool"}.get(value.kind)
    made = f"{at}.{reader}()" if reader else f"{CPP.tensors[value.dtype or ''].reader}({at})"
    shown = f"output.{value.name}"
    if value.kind == "Tensor":
        shown_text = f'std::printf("{value.name}: %zu values\\n", {shown}.size());'
    else:
        shown_text = f'std::printf("{value.name}: %g\\n", static_cast<double>({shown}));'
    return value.model_dump() | {"from_runtime": made, "print": shown_text}


def _shape(given: AppValue) -> str:
    return f"{{{', '.join(map(str, given.shape or ()))}}}"


def _zero(value: LibraryValue, given: AppValue) -> Iterator[str]:
    """Tensors of zeros; a program may take no other single value than that of its export."""
    if value.kind != "Tensor":
        yield "0.0" if given.value is None else _scalar(value, given)
        return
    count = 1
    for size in given.shape or ():
        count *= size
    yield f"{value.type}({count})"
    if value.shape_name:
        yield _shape(given)


def _scalar(value: LibraryValue, given: AppValue) -> str:
    if value.kind == "Bool":
        return str(bool(given.value)).lower()
    if given.value is None:  # JSON has no infinity
        return "NAN"
    return repr(float(given.value)) if value.kind == "Double" else f"int64_t{{{int(given.value)}}}"


def _argument(value: LibraryValue, given: AppValue) -> Iterator[str]:
    if value.kind != "Tensor":
        yield _scalar(value, given)
        return
    yield f'{CPP.tensors[value.dtype or ""].golden}("{given.path}")'
    if value.shape_name:
        yield _shape(given)


def _expected(value: LibraryValue, given: AppValue) -> Mapping[str, Any]:
    made = {**value.model_dump(), "atol": given.atol}
    if value.kind == "Tensor":
        dtype = CPP.tensors[value.dtype or ""]
        golden = f'{dtype.golden}("{given.path}")'
        return made | {"golden": golden, "found": f"output.{value.name}", "number": dtype.converter}
    one = f"std::vector<double>{{static_cast<double>({_scalar(value, given)})}}"
    found = f"std::vector<double>{{static_cast<double>(output.{value.name})}}"
    return made | {"golden": one, "found": found, "number": "number<double>"}
