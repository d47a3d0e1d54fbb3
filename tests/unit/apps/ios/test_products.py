"""Products of ExecuTorch's Swift package, and what it lacks."""

from __future__ import annotations

import pytest

from etdeploy.apps.ios.xcode import has_thread_pool, package_blockers, swift_products
from etdeploy.program.model import Delegate, Method, Operator, Program


def make_program(*, operators: tuple[str, ...] = (), delegates: tuple[str, ...] = ()) -> Program:
    method = Method(
        name="forward",
        inputs=(),
        outputs=(),
        operators=tuple(Operator(name=name, calls=1) for name in operators),
        delegates=tuple(Delegate(backend_id=name, size_bytes=1) for name in delegates),
        instructions=1,
        planned_memory_bytes=0,
    )
    return Program(sha256="", size_bytes=1, schema_version=0, constant_bytes=0, methods=(method,))


@pytest.mark.parametrize(
    ("operators", "delegates", "products"),
    [
        (("aten::add.out",), (), ("executorch", "kernels_optimized")),
        ((), ("XnnpackBackend",), ("backend_xnnpack", "executorch")),
        ((), ("CoreMLBackend", "MPSBackend"), ("backend_coreml", "backend_mps", "executorch")),
        (("executorch_prim::add.Scalar", "aten::sym_size.int"), ("CoreMLBackend",),
         ("backend_coreml", "executorch")),
        # Its library needs the thread pool, which comes with the kernels of aten.
        (("quantized_decomposed::add.out",), (),
         ("executorch", "kernels_optimized", "kernels_quantized")),
        (("llama::custom_sdpa.out", "torchao::_linear_8bit_act_4bit_weight.out"), (),
         ("executorch", "kernels_llm", "kernels_optimized", "kernels_torchao")),
    ],
)  # fmt: skip
def test_only_what_the_program_needs_is_linked(
    operators: tuple[str, ...], delegates: tuple[str, ...], products: tuple[str, ...]
) -> None:
    program = make_program(operators=operators, delegates=delegates)
    assert swift_products(program) == products
    assert list(package_blockers(program)) == []


def test_the_thread_pool_comes_with_kernels_or_a_backend_that_uses_it() -> None:
    assert has_thread_pool(("executorch", "kernels_optimized"))
    assert has_thread_pool(("backend_xnnpack", "executorch"))
    assert not has_thread_pool(("backend_coreml", "executorch"))


@pytest.mark.parametrize("backend", ["QnnBackend", "VulkanBackend", "OpenvinoBackend", "Unheard"])
def test_a_backend_that_no_iphone_has_is_refused(backend: str) -> None:
    (blocker,) = package_blockers(make_program(delegates=(backend, "XnnpackBackend")))
    assert blocker.of_program
    assert backend in blocker.why
    assert "--set export.backend=coreml" in blocker.remedy


def test_a_finished_program_cannot_be_exported_by_a_setting() -> None:
    (blocker,) = package_blockers(make_program(delegates=("VulkanBackend",)), finished=True)
    assert "finished" in blocker.remedy
    assert "--set" not in blocker.remedy


def test_operators_without_a_kernel_are_refused() -> None:
    own, theirs = package_blockers(
        make_program(operators=("etdeploy::attention.out", "etdeploy::rotate.out", "mine::op.out"))
    )
    assert all(name in own.why for name in ("etdeploy::attention.out", "etdeploy::rotate.out"))
    assert own.remedy.endswith("--set export.generation.attention=stock")
    assert theirs.what == "operators mine::op.out"
