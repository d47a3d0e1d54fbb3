"""Recorded plans from source; every option and component is in one of them.

`python -m tests.support.golden_plans` writes them anew; look at the difference before it is kept.
"""

from __future__ import annotations

from pathlib import Path

from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.load import load_recipe
from etdeploy.targets.platforms import TARGETS
from tests.support.runtime_values import make_method, make_plan, make_program

FOLDER = Path(__file__).parent.parent / "data" / "plans" / "source"

# What an export of each bundled recipe's example typically leaves.
_PROGRAMS: dict[str, Program] = {
    "portable": make_program(
        make_method(
            operators=("aten::addmm.out", "aten::permute_copy.out", "aten::relu.out"),
            dtypes=("float32",),
        )
    ),
    "xnnpack": make_program(make_method(delegates=("XnnpackBackend",))),
    "qnn": make_program(make_method(delegates=("QnnBackend",))),
    "vulkan": make_program(
        make_method(operators=("aten::add.out",), dtypes=("float16",), delegates=("VulkanBackend",))
    ),
    "coreml": make_program(make_method(delegates=("CoreMLBackend",))),
    "llm-xnnpack": make_program(
        make_method(
            "decode",
            operators=(
                "aten::index_put_",
                "aten::mean.out",
                "quantized_decomposed::embedding_byte.out",
            ),
            dtypes=("float32",),
            delegates=("XnnpackBackend",),
        ),
        make_method(
            "prefill",
            operators=("aten::index_put_", "aten::mean.out", "aten::slice_copy.Tensor_out"),
            dtypes=("float32",),
            delegates=("XnnpackBackend",),
        ),
    ),
    "openvino": make_program(make_method(delegates=("OpenvinoBackend",))),
}


# Every bundled recipe, every kind of target (unit tests derive the other pairs, too), and a backend
# that the target does not have.
CASES = (
    ("portable", "linux-x86_64-portable"),
    ("xnnpack", "linux-x86_64"),
    ("xnnpack", "linux-aarch64-musl"),
    ("xnnpack", "android-arm64"),
    ("xnnpack", "ios-arm64"),
    ("xnnpack", "macos-arm64"),
    ("llm-xnnpack", "linux-aarch64"),
    ("qnn", "android-arm64"),
    ("qnn", "linux-x86_64"),
    ("vulkan", "android-x86_64"),
    ("openvino", "linux-x86_64"),
    ("coreml", "ios-simulator"),
    ("coreml", "android-arm64"),
)


def path_of(recipe: str, target: str) -> Path:
    """The file with the recorded plans."""
    return FOLDER / f"{recipe}.{target}.txt"


def render(recipe: str, target: str) -> str:
    """The plan before there is a program, and with one, as text."""
    loaded = load_recipe(recipe, ["runtime.provider=source"]).recipe
    host = "macos-arm64" if TARGETS[target].system in ("macos", "ios") else "linux-x86_64"
    parts = [
        (title, make_plan(loaded, program, target, host))
        for title, program in (("the recipe", None), ("a program", _PROGRAMS[recipe]))
    ]
    return "\n".join(f"from {title}\n{_text(plan)}" for title, plan in parts)


def _text(plan: RuntimePlan) -> str:
    toolchain = [plan.toolchain] if plan.toolchain else []
    lines = [
        f"  {e.name}{'' if e.value is None else f'={e.value}'}  because {e.reason}"
        for e in (plan.provider, *toolchain, *plan.components, *plan.options)
    ]
    lines += [f"  to know: {note}" for note in plan.notes]
    lines += [f"  in the way: {o.what}: {o.why}" for o in plan.blockers]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for recipe, target in CASES:
        path_of(recipe, target).write_text(render(recipe, target))
