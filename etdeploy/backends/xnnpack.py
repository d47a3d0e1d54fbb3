"""XNNPACK: the CPU, on every system."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from etdeploy.backends.base import NEW_FILE, Backend
from etdeploy.backends.options import Option
from etdeploy.backends.rewrites import REWRITES
from etdeploy.backends.schemes import DYNAMIC_SCHEMES, LINEAR_SCHEMES
from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.flatbuffer import CorruptError, FlatBuffer
from etdeploy.core.values import ReasonedChoice

if TYPE_CHECKING:
    from etdeploy.backends.values import Build, Payload
    from etdeploy.core.flatbuffer import FlatbufferTable


# A pointwise convolution is run as a fully connected layer, so both are one family.
_PRODUCTS = ("aten::convolution", "aten::linear", "aten::addmm", "aten::mm")

TRACED: dict[str, tuple[str, ...]] = {
    "Convolution": _PRODUCTS,
    "Deconvolution": _PRODUCTS,
    "Fully Connected": _PRODUCTS,
    "Dynamic Fully Connected": _PRODUCTS,
    "Batch Matrix Multiply": ("aten::bmm",),
    "Softmax": ("aten::_softmax",),
    "Mean": ("aten::mean",),
    "Sum": ("aten::sum",),
    "Max Pooling": ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
    "ArgMax Pooling": ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
    "Average Pooling": ("aten::avg_pool2d",),
    "Add": ("aten::add",),
    "Subtract": ("aten::sub",),
    # The product of a tensor with itself becomes a square.
    "Multiply": ("aten::mul",),
    "Square (": ("aten::mul",),
    "Divide": ("aten::div",),
    "Maximum": ("aten::maximum",),
    "Minimum": ("aten::minimum",),
    "Sigmoid": ("aten::sigmoid",),
    "HardSwish": ("aten::hardswish",),
    "TanH": ("aten::tanh",),
    "ApproxGELU": ("aten::gelu",),
    "GELU": ("aten::gelu",),
    "ELU": ("aten::elu",),
    "LeakyReLU": ("aten::leaky_relu",),
    "PReLU": ("aten::prelu", "aten::_prelu_kernel"),
    "Exp": ("aten::exp",),
    "Log": ("aten::log",),
    "Negate": ("aten::neg",),
    "Abs": ("aten::abs",),
    "Reciprocal Square Root": ("aten::rsqrt",),
}


def _kleidiai(build: Build) -> tuple[bool, str]:
    """Its kernels are for qp8 and qd8 weights, and for pf32 and pf16 where there is SME."""
    wanted, scheme = build.runtime.kleidiai, build.quantization
    if wanted is not None:
        return wanted, f"runtime.kleidiai is {'true' if wanted else 'false'}"
    if scheme is None:
        return True, "the finished program may hold dynamically quantized weights"
    if scheme in DYNAMIC_SCHEMES:
        return True, f"export.quantization is {scheme}, which its kernels compute"
    return False, (
        f"export.quantization is {scheme}; its kernels are for dynamically quantized weights, "
        "and for others on processors with SME only (then set runtime.kleidiai: true)"
    )


class Xnnpack(Backend):
    """XNNPACK, whose payload says how many nodes it has."""

    def cmake_options(self, build: Build) -> Iterator[ReasonedChoice]:
        if build.target.arch == "aarch64":
            on, reason = _kleidiai(build)
            value = "ON" if on else "OFF"
            # The second is XNNPACK's own: without it, XNNPACK fetches and compiles KleidiAI anyway.
            for name in ("EXECUTORCH_XNNPACK_ENABLE_KLEIDI", "XNNPACK_ENABLE_KLEIDIAI"):
                yield ReasonedChoice(name=name, value=value, reason=reason)
        if build.runtime.weight_cache:
            yield ReasonedChoice(
                name="EXECUTORCH_XNNPACK_ENABLE_WEIGHT_CACHE",
                value="ON",
                reason="runtime.weight_cache is true",
            )

    def build_notes(self, options: Mapping[str, str | None]) -> Iterator[str]:
        """That cmake downloads KleidiAI."""
        if options.get("XNNPACK_ENABLE_KLEIDIAI") == "ON" and "KLEIDIAI_SOURCE_DIR" not in options:
            yield (
                "XNNPACK downloads KleidiAI while it is configured. Without network access, set "
                "runtime.kleidiai: false, or unpack it and set "
                "runtime.cmake: {KLEIDIAI_SOURCE_DIR: /path/to/kleidiai}."
            )

    def read_payload(self, delegate: FlatbufferTable, payload: memoryview) -> Payload:
        return read_graph(payload)


XNNPACK_FAILURES = FailureTable(
    "XNNPACK",
    7,
    (
        FailurePattern(
            r"XNNPACKBackend\S* Failed to initialize",
            "XNNPACK could not start on this device, usually because it cannot read which CPU it "
            "has",
            "Check whether /proc/cpuinfo and /sys/devices/system/cpu can be read there; or run "
            "without XNNPACK: --set export.backend=portable",
            "Check whether /proc/cpuinfo and /sys/devices/system/cpu can be read there; or export "
            f"the model\nagain without XNNPACK, {NEW_FILE}.",
        ),
    ),
)
XNNPACK = Xnnpack(
    name="xnnpack",
    delegate_id="XnnpackBackend",
    quantizations=("none", "int8_static", "int8_dynamic", *LINEAR_SCHEMES),
    overrides=("none", *LINEAR_SCHEMES),
    with_floats=("int8_static", "int8_dynamic"),
    embeddings=("8w", "4w"),
    rewrites=tuple(REWRITES),
    lowering="etdeploy.export.worker.backends.xnnpack",
    options=(
        Option(
            "per_op_mode",
            False,
            "Makes each operator a partition of its own, with an exact place in a profile; slower.",
        ),
    ),
    component="backend_xnnpack",
    switch="EXECUTORCH_BUILD_XNNPACK",
    cmake_target="xnnpack_backend",
    submodules=(
        "backends/xnnpack/third-party/XNNPACK",
        "backends/xnnpack/third-party/FP16",
    ),
    wheels=("linux-x86_64", "linux-aarch64", "macos-arm64"),
    aar="executorch-android",
    threaded=True,
    own_kernels=True,
    tried=True,
    traced=TRACED,
    failures=XNNPACK_FAILURES,
)


_HEADER = struct.Struct("<4x4sHII")
_HEADER_MAGIC = b"XH00"
_GRAPH_MAGIC = b"XN"
_XNODES, _CONSTANT_DATA = 1, 8
_NAMED_KEY = 2


def read_graph(payload: memoryview) -> Payload:
    """Nodes and named weights of a partition; nothing of a payload in an unknown format."""
    from etdeploy.backends.values import Payload

    magic = bytes(payload[4:8])
    if magic[:2] != _GRAPH_MAGIC:
        if magic != _HEADER_MAGIC or len(payload) < _HEADER.size:
            return Payload()
        _, _, offset, size = _HEADER.unpack_from(payload)
        if offset + size > len(payload):
            raise CorruptError("an XNNPACK partition extends beyond its data")
        payload = payload[offset : offset + size]
    root = FlatBuffer(payload).root()
    keys = (data.string(_NAMED_KEY) for data in root.tables(_CONSTANT_DATA))
    nodes = root.length(_XNODES, item_bytes=4)
    return Payload(nodes=nodes, data_keys=tuple(filter(None, keys)))
