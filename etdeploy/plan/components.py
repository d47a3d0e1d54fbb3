"""Facts: ExecuTorch's components, what each provides, and which wheel carries it.

Sources: the wheels of ExecuTorch 1.5.1, the operators and backends registered in a program that
links one component alone, and the CMakeLists.txt of 1.3 to 1.5.
"""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of, backends_built_with, backends_with, known_entries
from etdeploy.plan.model import RuntimePlan

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
# Etdeploy's own, compiled with the runner: no provider has to have them.
KERNELS_ETDEPLOY = "kernels_etdeploy"

# The cmake option that builds a component that is linked only if a program needs it, besides those
# of the backends, which say theirs themselves.
SWITCHES: dict[str, str] = {
    KERNELS_QUANTIZED: "EXECUTORCH_BUILD_KERNELS_QUANTIZED",
    KERNELS_LLM: "EXECUTORCH_BUILD_KERNELS_LLM",
    KERNELS_TORCHAO: "EXECUTORCH_BUILD_KERNELS_TORCHAO",
}

_PORTABLE_OPS = "EXECUTORCH_BUILD_PORTABLE_OPS"

# The cmake options without which a component is not built.
_BUILT_BY: dict[str, tuple[str, ...]] = {
    RUNTIME: tuple(
        f"EXECUTORCH_BUILD_EXTENSION_{part}"
        for part in ("MODULE", "DATA_LOADER", "FLAT_TENSOR", "NAMED_DATA_MAP", "TENSOR")
    ),
    THREADPOOL: ("EXECUTORCH_BUILD_PTHREADPOOL", "EXECUTORCH_BUILD_CPUINFO"),
    ETDUMP: ("EXECUTORCH_BUILD_DEVTOOLS",),
    KERNELS_PORTABLE: (_PORTABLE_OPS,),
    KERNELS_SELECTED: (_PORTABLE_OPS,),
    KERNELS_OPTIMIZED: (_PORTABLE_OPS, "EXECUTORCH_BUILD_KERNELS_OPTIMIZED"),
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
    "etdeploy": KERNELS_ETDEPLOY,
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
# come from the portable kernels, also in the optimized library.
OPTIMIZED_OPERATORS = frozenset(f"aten::{name}" for name in _OPTIMIZED.split())

# The data types that ExecuTorch's selection of kernels by data type knows
# (codegen/tools/gen_oplist.py, ScalarType, 1.3 to 1.5): 16-bit floats are not among them.
SELECTABLE_DTYPES = frozenset(
    {"uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool"}
)

# Operators of `kernels_llm` that etdeploy's kernels have, too, for providers without that library,
# and the data types that they compute with.
STAND_INS: dict[str, frozenset[str]] = {
    "llama::custom_sdpa.out": frozenset({"float32"}),
    "llama::update_cache.out": SELECTABLE_DTYPES,
}

# Components whose loops run on the thread pool: their libraries list its library as needed.
_THREADED = frozenset(
    {KERNELS_OPTIMIZED, KERNELS_QUANTIZED, KERNELS_LLM, KERNELS_TORCHAO, KERNELS_ETDEPLOY}
)

_EVERYWHERE = frozenset({RUNTIME, THREADPOOL, ETDUMP, KERNELS_OPTIMIZED, KERNELS_QUANTIZED})
# Besides the backends, which say themselves which wheels carry them.
_SHIPPED: dict[str, frozenset[str]] = {
    "linux-x86_64": _EVERYWHERE,
    "linux-aarch64": _EVERYWHERE,
    "macos-arm64": _EVERYWHERE | {KERNELS_TORCHAO},
}


def provided(names: Iterable[str]) -> frozenset[str]:
    """Those of the components that a provider has to have."""
    return frozenset(names) - {KERNELS_ETDEPLOY}


def switches() -> dict[str, str]:
    """The cmake option that builds each component that is linked only if a program needs it."""
    entries = known_entries().values()
    return SWITCHES | {e.component: e.switch for e in entries if e.component and e.switch}


def built_by(component: str) -> tuple[str, ...]:
    """The cmake options without which a component is not built."""
    switch = switches().get(component)
    return (switch,) if switch else _BUILT_BY.get(component, ())


def threaded(components: Iterable[str]) -> list[str]:
    """Those of the components that run on ExecuTorch's thread pool."""
    names = set(components)
    backends = {backend.component for backend in backends_with(names) if backend.threaded}
    return sorted(names & (_THREADED | backends))


def shipped_components(build_target: str, delegate_ids: Iterable[str]) -> frozenset[str]:
    """The components of the wheel for a target, of backends those of these delegates.

    Empty when there is no wheel for the target.
    """
    backends = filter(None, map(backend_of, delegate_ids))
    carried = {b.component for b in backends if b.component and build_target in b.wheels}
    return _SHIPPED.get(build_target, frozenset()) | carried


def backend_component(delegate_id: str) -> str | None:
    """The component that registers a delegate; None when none is known."""
    backend = backend_of(delegate_id)
    return backend.component if backend else None


def operator_component(name: str) -> str | None:
    """The component that registers the operator `aten::add.out`; None when none is known."""
    if name in RUNTIME_OPERATORS:
        return RUNTIME
    return NAMESPACES.get(name.split("::", 1)[0])


def linked_backends(plan: RuntimePlan) -> tuple[Backend, ...]:
    """The backends that a plan links, from a wheel or built from source."""
    return backends_with(plan.component_names)


def built_backends(plan: RuntimePlan) -> tuple[Backend, ...]:
    """The backends that a plan builds from source."""
    return backends_built_with({option.name: option.value for option in plan.options})
