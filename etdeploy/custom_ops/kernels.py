"""The C++ kernels of a recipe's custom operators: their folder, registration and build errors.

Three kinds of folder are supported. Sources with a yaml file that lists operators and kernels:
etdeploy writes the registration. Sources alone: they register their kernels themselves, so only the
built runner can list them. A CMakeLists.txt with a target that registers its kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import write_if_changed
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.custom_ops.yaml_file import Declared, read_names, read_operators
from etdeploy.program.inspect import inspect_file

CMAKE_FILE = "CMakeLists.txt"
REGISTRATION = "registration.cpp"
_SOURCES = {".c", ".cc", ".cpp", ".cxx"}
_HEADERS = {".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp"}
_YAML = {".yaml", ".yml"}
_FAILED = re.compile(r"FAILED: ")
_STEP = re.compile(r"\[\d+/\d+\] ")
_UNDEFINED = re.compile(r"undefined reference to [`'\"](.+?)\(|undefined symbol: (.+?)\(")


@dataclass(frozen=True)
class CustomOps:
    """A folder of kernels.

    Attributes:
        folder: Its absolute path.
        target: The CMake target that the runner links; None if the sources are compiled.
        sources: Paths relative to the folder; empty with a target.
        declared: The operators that etdeploy registers; empty if the sources or the target
            register theirs.
        operators: Full names; None if only the built runner can list them.
        digest: Of every file that a build may read, equal wherever the folder is.
        headers: Those below the folder, relative to it; empty with a target.
    """

    folder: Path
    target: str | None
    sources: tuple[str, ...]
    declared: tuple[Declared, ...]
    operators: frozenset[str] | None
    digest: str
    headers: tuple[str, ...] = ()

    def definitions(self, build_folder: Path) -> dict[str, str]:
        """Return the definitions that the runner's `custom_ops.cmake` reads."""
        found = {"ETDEPLOY_CUSTOM_OPS": str(self.folder)}
        if self.target:
            return found | {"ETDEPLOY_CUSTOM_OPS_TARGET": self.target}
        found["ETDEPLOY_CUSTOM_OPS_SOURCES"] = ";".join(self.sources)
        if self.declared:
            found["ETDEPLOY_CUSTOM_OPS_REGISTRATION"] = str(build_folder / REGISTRATION)
        return found


def read_custom_ops(folder: Path, target: str | None = None) -> CustomOps:
    """Read the folder of `runtime.custom_ops`, with the target of `runtime.custom_ops_target`.

    Nothing is run. A folder without kernels, or a line of its yaml file that is not supported,
    raises BuildError.
    """
    try:
        return _read(folder.resolve(), target)
    except OSError as error:
        raise BuildError(
            f"the folder of custom kernels cannot be read: {error.strerror}",
            place=str(error.filename or folder),
        ) from error


def _read(folder: Path, target: str | None) -> CustomOps:
    files = tuple(_below(folder, folder))
    lists = [name for name in files if "/" not in name and Path(name).suffix in _YAML]
    if target:
        return _of_target(folder, target, files, lists)
    sources = tuple(name for name in files if Path(name).suffix in _SOURCES)
    declared = tuple(o for name in lists for o in read_operators(folder / name))
    _require_once(declared)
    if not declared and CMAKE_FILE in files:
        raise BuildError(
            f"there is a {CMAKE_FILE} and no yaml file that lists operators",
            place=str(folder),
            remedy="Name its target that the runner links: "
            "--set runtime.custom_ops_target=my_kernels",
        )
    if not sources:
        raise BuildError(
            "there are no C++ sources of kernels",
            place=str(folder),
            remedy="Name the folder with .cpp files and a .yaml file: "
            "--set runtime.custom_ops=path/to/kernels",
        )
    kept = (f for f in files if Path(f).suffix in _SOURCES | _HEADERS or f in lists)
    return CustomOps(
        folder=folder,
        target=None,
        sources=sources,
        declared=declared,
        operators=frozenset(o.schema.full_name for o in declared) if declared else None,
        digest=_digest(folder, kept, None),
        headers=tuple(name for name in files if Path(name).suffix in _HEADERS),
    )


def names_to_find(ops: CustomOps | None, program: Path | None) -> tuple[str, ...]:
    """Return the operators of a program, if only the runner shows which the kernels register."""
    if ops is None or ops.operators is not None or program is None:
        return ()
    return inspect_file(program).operators


def write_registration(ops: CustomOps, build_folder: Path) -> Path | None:
    """Write the file that registers the operators; None if the kernels register themselves."""
    if not ops.declared:
        return None
    path = build_folder / REGISTRATION
    write_if_changed(path, registration_code(ops.declared))
    return path


@dataclass(frozen=True)
class KernelError:
    """The place in the user's files where a build failed, and what to do."""

    place: str
    remedy: str | None = None


def find_kernel_error(ops: CustomOps, lines: Sequence[str]) -> KernelError | None:
    """Return the place in the user's own files that made a build with this output fail.

    For an error in a template, the compiler names a line of ExecuTorch's header; the user needs the
    line of the kernel that led there. Only the linker reports a kernel without a definition.
    """
    return _undefined(ops, lines) or _own_line(ops, lines)


def _own_line(ops: CustomOps, lines: Sequence[str]) -> KernelError | None:
    """Return the line of the first error, else the nearest before it (GCC) or after it (Clang)."""
    own = re.compile(rf"{re.escape(str(ops.folder))}/[^:\s]+:\d+(?::\d+)?")
    failed = [line for line in _failed(lines) if " warning: " not in line]
    first = next((i for i, line in enumerate(failed) if " error: " in line), len(failed) - 1)
    nearest = (*reversed(failed[: first + 1]), *failed[first + 1 :])
    found = next((match for line in nearest if (match := own.search(line))), None)
    return KernelError(found[0]) if found else None


def _failed(lines: Sequence[str]) -> Iterator[str]:
    """Yield ninja's output of the first step that failed."""
    inside = False
    for line in lines:
        if inside and _STEP.match(line):
            return
        inside = inside or bool(_FAILED.match(line))
        if inside:
            yield line


def _undefined(ops: CustomOps, lines: Sequence[str]) -> KernelError | None:
    by_kernel = {o.kernel.removeprefix("::"): o for o in ops.declared}
    for line in lines:
        found = _UNDEFINED.search(line)
        operator = by_kernel.get(found[1] or found[2]) if found else None
        if operator:
            return KernelError(
                operator.place,
                f"Define the kernel of {operator.schema.full_name} with exactly these types:\n"
                f"{operator.signature}",
            )
    return None


def _of_target(folder: Path, target: str, files: tuple[str, ...], lists: list[str]) -> CustomOps:
    if CMAKE_FILE not in files:
        raise BuildError(
            f"there is no {CMAKE_FILE} with the target {target}",
            place=str(folder),
            remedy="Name the folder with that file, or remove runtime.custom_ops_target.",
        )
    names = frozenset(name for file in lists for name in read_names(folder / file))
    return CustomOps(folder, target, (), (), names or None, _digest(folder, files, target))


def _require_once(declared: tuple[Declared, ...]) -> None:
    places: dict[str, str] = {}
    for operator in declared:
        name = operator.schema.full_name
        if name in places:
            raise BuildError(
                f"{name} is listed already, at {places[name]}",
                place=operator.place,
                remedy="Remove one: two kernels for one operator end the runner when it starts.",
            )
        places[name] = operator.place


def _below(root: Path, folder: Path) -> Iterator[str]:
    """Every file below the folder, except hidden files and cmake's build folders."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_file():
            yield path.relative_to(root).as_posix()
        elif path.is_dir() and not path.is_symlink() and not (path / "CMakeCache.txt").is_file():
            yield from _below(root, path)


def _digest(folder: Path, files: Iterator[str] | Sequence[str], target: str | None) -> str:
    return digest_json([{name: sha256_file(folder / name) for name in files}, target])


_HEAD = """\
// Registers the kernels of {names}. Written by etdeploy.
#include <optional>
#include <string_view>
#include <tuple>

#include <executorch/runtime/core/event_tracer_hooks.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>
"""
_DECLARATION = """
// {place}
namespace {namespace} {{
{returns} {function}(::executorch::runtime::KernelRuntimeContext&{types});
}} // namespace {namespace}
"""
# A program exported for another schema must not run with this one.
_CALL = """
void call_{index}(KernelRuntimeContext& context, Span<EValue*> stack) {{
  if (stack.size() != {size}) {{
    ET_LOG(Error, "{name}: expected {size} values, got %zu", stack.size());
    context.fail(::executorch::runtime::Error::InvalidProgram);
    return;
  }}
  const EventTracerProfileOpScope scope(context.internal_event_tracer(), "native_call_{short}");
  {call};
{logs}}}
"""
_TAIL = """
const Kernel kernels[] = {{
{entries}
}};
[[maybe_unused]] const auto registered = ::executorch::runtime::register_kernels(
    Span<const Kernel>(kernels, sizeof(kernels) / sizeof(kernels[0])));

}} // namespace
"""


def registration_code(operators: Sequence[Declared]) -> str:
    """The C++ file, which declares, unboxes and registers each kernel by its full name."""
    names = ", ".join(o.schema.full_name for o in operators)
    entries = "\n".join(
        f'    Kernel("{o.schema.full_name}", call_{i}),' for i, o in enumerate(operators)
    )
    return "".join(
        (
            _HEAD.format(names=names),
            *(_declaration(o) for o in operators),
            "\nnamespace {\n\n"
            "using ::executorch::runtime::EValue;\n"
            "using ::executorch::runtime::Kernel;\n"
            "using ::executorch::runtime::KernelRuntimeContext;\n"
            "using ::executorch::runtime::Span;\n"
            "using ::executorch::runtime::internal::EventTracerProfileOpScope;\n",
            *(_call(o, i) for i, o in enumerate(operators)),
            _TAIL.format(entries=entries),
        )
    )


def _declaration(operator: Declared) -> str:
    namespace, _, function = operator.kernel.removeprefix("::").rpartition("::")
    file, _, line = operator.place.replace("\\", "/").rpartition("/")[2].partition(":")
    return _DECLARATION.format(
        place=f"{file}, line {line}",
        namespace=namespace,
        function=function,
        returns=operator.schema.cpp_return,
        types="".join(f", {a.cpp_type}" for a in operator.schema.arguments),
    )


def _call(operator: Declared, index: int) -> str:
    schema = operator.schema
    # The returned value, an output again, follows the arguments.
    last = len(schema.arguments)
    values = "".join(f", stack[{i}]->{a.accessor}" for i, a in enumerate(schema.arguments))
    call = f"{operator.kernel}(context{values})"
    logged = [i for i, a in enumerate(schema.arguments) if a.output]
    if not logged:
        call, logged = f"*stack[{last}] = EValue({call})", [last]
    logs = "".join(
        "  ::executorch::runtime::internal::event_tracer_log_evalue(\n"
        f"      context.internal_event_tracer(), *stack[{i}]);\n"
        for i in logged
    )
    return _CALL.format(
        index=index,
        size=last + 1,
        name=schema.full_name,
        short=schema.name,
        call=call,
        logs=logs,
    )
