"""Writes the C++ file that registers custom operators with ExecuTorch.

It replaces ExecuTorch's own generator, whose templates are not in its wheel.
"""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.custom_ops.yaml_file import Declared

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
    ET_LOG(Error, "{name}: %zu values are given, {size} are expected", stack.size());
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
