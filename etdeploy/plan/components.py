"""Facts: ExecuTorch's components, what each provides, and which wheel carries it.

Sources: the wheels of ExecuTorch 1.5.1, the operators and backends registered in a program that
links one component alone, and the CMakeLists.txt of 1.3 to 1.5.
"""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME = "runtime"
THREADPOOL = "threadpool"
ETDUMP = "etdump"
# All CPU kernels in the wheel; a build from source uses one of the next three for `aten`.
KERNELS_OPTIMIZED = "kernels_optimized"
KERNELS_PORTABLE = "kernels_portable"
KERNELS_SELECTED = "kernels_selected"
KERNELS_QUANTIZED = "kernels_quantized"
KERNELS_LLM = "kernels_llm"
KERNELS_TORCHAO = "kernels_torchao"


@dataclass(frozen=True)
class BackendFacts:
    """What a delegate requires of the runtime.

    Attributes:
        delegate_id: As programs name it.
        component: The component that registers it.
        switch: The cmake option that builds it.
        systems: Systems that it runs on; empty for all.
        arches: The instruction sets that it runs on; empty for all.
        loads: Whether it loads the device maker's libraries when it starts.
        tried: Whether it was built and run with etdeploy; the others follow ExecuTorch's
            documentation.
    """

    delegate_id: str
    component: str
    switch: str
    systems: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    loads: bool = False
    tried: bool = False


_APPLE = ("macos", "ios")
BACKEND_FACTS: dict[str, BackendFacts] = {
    b.delegate_id: b
    for b in (
        BackendFacts("XnnpackBackend", "backend_xnnpack", "EXECUTORCH_BUILD_XNNPACK", tried=True),
        BackendFacts(
            "QnnBackend", "backend_qnn", "EXECUTORCH_BUILD_QNN", ("android", "linux"), loads=True
        ),
        BackendFacts(
            "VulkanBackend",
            "backend_vulkan",
            "EXECUTORCH_BUILD_VULKAN",
            ("android", "linux"),
            loads=True,
        ),
        BackendFacts("CoreMLBackend", "backend_coreml", "EXECUTORCH_BUILD_COREML", _APPLE),
        BackendFacts("MPSBackend", "backend_mps", "EXECUTORCH_BUILD_MPS", _APPLE),
        BackendFacts("MLXBackend", "backend_mlx", "EXECUTORCH_BUILD_MLX", ("macos",)),
        BackendFacts(
            "OpenvinoBackend",
            "backend_openvino",
            "EXECUTORCH_BUILD_OPENVINO",
            ("linux",),
            loads=True,
        ),
        BackendFacts(
            "NeuropilotBackend",
            "backend_neuron",
            "EXECUTORCH_BUILD_NEURON",
            ("android",),
            ("aarch64",),
            loads=True,
        ),
        BackendFacts(
            "EnnBackend",
            "backend_enn",
            "EXECUTORCH_BUILD_ENN",
            ("android",),
            ("aarch64",),
            loads=True,
        ),
        BackendFacts(
            "VgfBackend", "backend_vgf", "EXECUTORCH_BUILD_VGF", ("android", "linux"), loads=True
        ),
    )
}

# The cmake option that builds a component that is linked only if a program needs it.
SWITCHES: dict[str, str] = {
    KERNELS_QUANTIZED: "EXECUTORCH_BUILD_KERNELS_QUANTIZED",
    KERNELS_LLM: "EXECUTORCH_BUILD_KERNELS_LLM",
    KERNELS_TORCHAO: "EXECUTORCH_BUILD_KERNELS_TORCHAO",
    **{facts.component: facts.switch for facts in BACKEND_FACTS.values()},
}

_PORTABLE_OPS = "EXECUTORCH_BUILD_PORTABLE_OPS"

# The cmake options without which a component is not built.
BUILT_BY: dict[str, tuple[str, ...]] = {
    RUNTIME: tuple(
        f"EXECUTORCH_BUILD_EXTENSION_{part}"
        for part in ("MODULE", "DATA_LOADER", "FLAT_TENSOR", "NAMED_DATA_MAP", "TENSOR")
    ),
    THREADPOOL: ("EXECUTORCH_BUILD_PTHREADPOOL", "EXECUTORCH_BUILD_CPUINFO"),
    ETDUMP: ("EXECUTORCH_BUILD_DEVTOOLS",),
    KERNELS_PORTABLE: (_PORTABLE_OPS,),
    KERNELS_SELECTED: (_PORTABLE_OPS,),
    KERNELS_OPTIMIZED: (_PORTABLE_OPS, "EXECUTORCH_BUILD_KERNELS_OPTIMIZED"),
    **{component: (switch,) for component, switch in SWITCHES.items()},
}

# The component that registers the operators of a namespace.
NAMESPACES: dict[str, str] = {
    "executorch_prim": RUNTIME,
    "aten": KERNELS_OPTIMIZED,
    "dim_order_ops": KERNELS_OPTIMIZED,
    "et_copy": KERNELS_OPTIMIZED,
    "quantized_decomposed": KERNELS_QUANTIZED,
    "quantized": KERNELS_QUANTIZED,
    "llama": KERNELS_LLM,
    "torchao": KERNELS_TORCHAO,
}

# Operators of aten that the runtime itself registers.
RUNTIME_OPERATORS = frozenset(
    {"aten::sym_size.int", "aten::sym_numel", "aten::_local_scalar_dense"}
)

_OPTIMIZED = """
_fft_c2r.out _fft_r2c.out _log_softmax.out add.out add.Scalar_out bmm.out div.out div.Scalar_out
elu.out exp.out gelu.out grid_sampler_2d.out le.Scalar_out le.Tensor_out linear.out mm.out mul.out
mul.Scalar_out native_layer_norm.out sub.out sum.IntList_out sub.Scalar_out where.self_out
"""

# Operators for which kernels/optimized/optimized.yaml has a kernel (1.3 to 1.5); all others of aten
# come from the portable kernels, also in the optimised library.
OPTIMIZED_OPERATORS = frozenset(f"aten::{name}" for name in _OPTIMIZED.split())

# The data types that ExecuTorch's selection of kernels by data type knows
# (codegen/tools/gen_oplist.py, ScalarType, 1.3 to 1.5): 16-bit floats are not among them.
SELECTABLE_DTYPES = frozenset(
    {"uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool"}
)

# Components whose loops run on the thread pool: their libraries list its library as needed.
THREADED = frozenset(
    {KERNELS_OPTIMIZED, KERNELS_QUANTIZED, KERNELS_LLM, KERNELS_TORCHAO, "backend_xnnpack"}
)

_EVERYWHERE = frozenset(
    {RUNTIME, THREADPOOL, ETDUMP, KERNELS_OPTIMIZED, KERNELS_QUANTIZED, "backend_xnnpack"}
)
_SHIPPED: dict[str, frozenset[str]] = {
    "linux-x86_64": _EVERYWHERE | {"backend_openvino", "backend_qnn"},
    "linux-aarch64": _EVERYWHERE | {"backend_openvino"},
    "macos-arm64": _EVERYWHERE | {"backend_coreml", "backend_mlx", KERNELS_TORCHAO},
}


def shipped_components(build_target: str) -> frozenset[str]:
    """The components of the wheel for a target; empty when there is no wheel for it."""
    return _SHIPPED.get(build_target, frozenset())


def backend_component(delegate_id: str) -> str | None:
    """The component that registers a delegate; None when none is known."""
    facts = BACKEND_FACTS.get(delegate_id)
    return facts.component if facts else None


def operator_component(name: str) -> str | None:
    """The component that registers the operator `aten::add.out`; None when none is known."""
    if name in RUNTIME_OPERATORS:
        return RUNTIME
    return NAMESPACES.get(name.split("::", 1)[0])
