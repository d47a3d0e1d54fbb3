"""Facts: ExecuTorch's components, what each of them provides, and which wheel carries it.

Read from the wheels of ExecuTorch 1.5.1, and from the operators and backends that a program which
links each component alone has registered.
"""

from __future__ import annotations

RUNTIME = "runtime"
THREADPOOL = "threadpool"
ETDUMP = "etdump"
KERNELS_OPTIMIZED = "kernels_optimized"
KERNELS_QUANTIZED = "kernels_quantized"

# The component that registers the delegate of that id; None where no wheel has one.
DELEGATES: dict[str, str | None] = {
    "XnnpackBackend": "backend_xnnpack",
    "CoreMLBackend": "backend_coreml",
    "MLXBackend": "backend_mlx",
    "OpenvinoBackend": "backend_openvino",
    "QnnBackend": "backend_qnn",
    "VulkanBackend": None,
}

# The component that registers the operators of a namespace.
NAMESPACES: dict[str, str] = {
    "executorch_prim": RUNTIME,
    "aten": KERNELS_OPTIMIZED,
    "dim_order_ops": KERNELS_OPTIMIZED,
    "et_copy": KERNELS_OPTIMIZED,
    "quantized_decomposed": KERNELS_QUANTIZED,
    "torchao": "kernels_torchao",
}

# Operators of aten that the runtime itself registers.
RUNTIME_OPERATORS = frozenset(
    {"aten::sym_size.int", "aten::sym_numel", "aten::_local_scalar_dense"}
)

# Components whose loops run on the thread pool: they name its library as needed.
THREADED = frozenset({KERNELS_OPTIMIZED, KERNELS_QUANTIZED, "backend_xnnpack", "kernels_torchao"})

_EVERYWHERE = frozenset(
    {RUNTIME, THREADPOOL, ETDUMP, KERNELS_OPTIMIZED, KERNELS_QUANTIZED, "backend_xnnpack"}
)
_SHIPPED: dict[str, frozenset[str]] = {
    "linux-x86_64": _EVERYWHERE | {"backend_openvino", "backend_qnn"},
    "linux-aarch64": _EVERYWHERE | {"backend_openvino"},
    "macos-arm64": _EVERYWHERE | {"backend_coreml", "backend_mlx", "kernels_torchao"},
}


def shipped_components(build_target: str) -> frozenset[str]:
    """What the wheel for a target carries, for a plan that is made before the wheel is here.

    Empty when there is no wheel for it.
    """
    return _SHIPPED.get(build_target, frozenset())


def operator_component(name: str) -> str | None:
    """The component that registers the operator `aten::add.out`; None when none is known."""
    if name in RUNTIME_OPERATORS:
        return RUNTIME
    return NAMESPACES.get(name.split("::", 1)[0])
