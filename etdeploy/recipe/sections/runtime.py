"""The section `runtime` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from etdeploy.recipe.choice import Takes, all_different
from etdeploy.recipe.sections.base import Section

ProviderName = Literal["auto", "wheel", "source"]
OptimizeFor = Literal["speed", "size"]
LogLevel = Literal["none", "fatal", "error", "info", "debug"]
ThreadPool = Literal["default", "performance_cores", "all_cores"]
Threads = Annotated[
    Annotated[int, Field(ge=0, le=256)]
    | Literal["auto"]
    | Annotated[
        tuple[Annotated[int, Field(ge=1, le=256)], ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes("a whole number from 0 to 256, auto, or a list of different numbers from 1 to 256"),
]


class Runtime(Section):
    """The C++ side: what the runner is linked against and how it runs.

    Keys that affect how ExecuTorch itself is compiled need the provider `source`; with `auto` they
    select it.
    """

    provider: ProviderName = "auto"
    """`wheel`: prebuilt libraries of the ExecuTorch wheel; `source`: built from a checkout;
    `auto` uses the wheel if it has everything that the program needs and no key below needs a
    build."""

    source: str | None = None
    """A checkout of ExecuTorch for the provider `source`; without it, etdeploy uses the
    one that ETDEPLOY_EXECUTORCH_SOURCE names, or a clone in the cache."""

    threads: Threads = 0
    """Threads of ExecuTorch's thread pool; with 0, ExecuTorch chooses, as it does in an app. `auto`
    takes one for each performance core that the runner may use. A list (`[1, 2, 4]`) measures with
    each number, shows the curve, and uses the fastest for the rest of the run."""

    thread_pool: ThreadPool = "default"
    """How many threads the pool has if `threads` is 0: ExecuTorch's default, one for each
    performance core, or one for each logical core. Needs `source`."""

    selective: bool = True
    """Whether a build from source includes only the operators, and where possible only the data
    types, that the program uses."""

    optimize: OptimizeFor = "speed"
    """What the compiler optimizes ExecuTorch for; `size` also replaces the
    optimized kernels with the portable ones. Needs `source`."""

    log_level: LogLevel = "error"
    """Which of ExecuTorch's log messages a build from source includes; the wheel has its own."""

    kleidiai: bool | None = None
    """Whether a build from source includes Arm's KleidiAI kernels in XNNPACK. They are for
    dynamically quantized weights and for processors with SME; by default, they are included for
    such weights."""

    weight_cache: bool = False
    """Whether XNNPACK's delegates share packed weights; `true` needs `source`."""

    android_api: int = Field(default=30, ge=28, le=36)
    """Minimum Android API level of a build with the NDK."""

    custom_ops: str | None = None
    """A folder with the C++ kernels of custom operators: `.cpp` files and a `.yaml` that lists
    operators and kernels, or a CMakeLists.txt with `custom_ops_target`."""

    custom_ops_target: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.+-]+$")
    """The CMake target of the custom operators' own CMakeLists.txt that the runner links."""

    cmake: dict[str, str | bool | int] = Field(default_factory=dict)
    """Extra cmake options; each is checked, and shown with the reason `recipe`.
    Needs `source`."""
