"""A program as text for people; nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.registry import backend_of
from etdeploy.core.console import size, table
from etdeploy.program.delegation import backend_shares, where_it_runs
from etdeploy.program.model import Method, Plain, Program, TensorInfo


def describe(program: Program, title: str) -> str:
    """Methods with inputs, outputs, delegates and operators, and all sizes.

    Args:
        program: What inspection found.
        title: The first word, usually the path.
    """
    lines = [
        f"{title}: {size(program.size_bytes)}, constants {size(program.constant_bytes)}, "
        f"schema version {program.schema_version}",
        f"sha256 {program.sha256}",
    ]
    for method in program.methods:
        lines += ["", *_method(method)]
    return "\n".join(lines)


def describe_tensor(info: TensorInfo | Plain | None) -> str:
    """`float32 [1, 3, 224, 224]`, with the largest size of a dynamic shape; `int 5` for a value."""
    if info is None:
        return "no tensor"
    if isinstance(info, Plain):
        return "None" if info.kind == "None" else f"{info.dtype} {info.value}"
    shape = f"[{', '.join(map(str, info.shape))}]"
    return f"{info.dtype} {'up to ' if info.dynamic else ''}{shape}"


def _method(method: Method) -> Iterator[str]:
    yield f"method {method.name}"
    for kind, infos in (("input", method.inputs), ("output", method.outputs)):
        for i, info in enumerate(infos):
            yield f"  {f'{kind} {i}':<10} {describe_tensor(info)}"
    yield f"  {'memory':<10} {size(method.planned_memory_bytes)} planned for activations"
    plural = "" if method.instructions == 1 else "s"
    yield f"  {'steps':<10} {method.instructions} instruction{plural}"
    for i, line in enumerate(where_it_runs(method.delegates, method.operators)):
        yield f"  {'runs on' if i == 0 else '':<10} {line}"
    for i, target in enumerate(dict.fromkeys(_targets(method))):
        yield f"  {'compiled' if i == 0 else '':<10} {target}"
    if method.delegates:
        yield ""
        yield _indented(_delegates(method))
    if method.operators:
        yield ""
        yield _indented(_operators(method))


def _targets(method: Method) -> Iterator[str]:
    """What each partition was compiled for, in its backend's words."""
    for delegate in method.delegates:
        backend = backend_of(delegate.backend_id)
        if backend and delegate.compiled_for:
            yield backend.describe_target(delegate.compiled_for)


def _delegates(method: Method) -> str:
    rows = [
        (share.backend_id, share.partitions, share.nodes, size(share.size_bytes))
        for share in backend_shares(method.delegates)
    ]
    columns = ("delegate", "partitions", "nodes", "size")
    return table(columns, rows, right=columns[1:])


def _operators(method: Method) -> str:
    title = "operator outside of delegates" if method.delegates else "operator"
    return table((title, "calls"), [(o.name, o.calls) for o in method.operators], ("calls",))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
