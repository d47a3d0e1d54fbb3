"""The runtime plan: what a runner consists of, and why."""

from __future__ import annotations

from etdeploy.core.errors import Blocker
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import ReasonedChoice, StrEnum, Value


class Provider(StrEnum):
    """Where ExecuTorch comes from: the libraries of its wheel, a compiled checkout, or its release
    for apps.
    """

    WHEEL = "wheel"
    SOURCE = "source"
    PREBUILT = "prebuilt"


# The component that stands for the recipe's own kernels.
CUSTOM_OPS = "custom_ops"


class RuntimePlan(Value):
    """Everything that decides how a runner is built.

    Attributes:
        target: What the user requested, e.g. `android-arm64`.
        build_target: What is compiled, e.g. `linux-aarch64` for the portable runner.
        portable_runner: Whether the runner is deployed with its own C library and loader.
        provider: `wheel` or `source`, of an app `prebuilt` or `source`, with the reason.
        executorch_version: Of the libraries.
        toolchain: File in toolchains/ when cross-compiling, with the reason; None for a native
            build.
        components: Libraries that are linked; `value` is the CMake target in the wheel or, in a
            build from source, which kernels the library has, if there is a choice.
        options: cmake options, which go on the command line as -Dname=value.
        selection: Digest of the operators and data types that are selected; None without.
        custom_ops: Digest of the recipe's own kernels; None without.
        program_sha256: The program that the plan was derived from.
        provisional: Whether it was derived from the recipe alone.
        blockers: What prevents it from being built; empty when nothing does.
        notes: What to know about it, as sentences.
    """

    target: str
    build_target: str
    portable_runner: bool
    provider: ReasonedChoice
    executorch_version: str
    toolchain: ReasonedChoice | None
    components: tuple[ReasonedChoice, ...]
    options: tuple[ReasonedChoice, ...]
    program_sha256: str | None
    selection: str | None = None
    custom_ops: str | None = None
    provisional: bool = False
    blockers: tuple[Blocker, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def component_names(self) -> tuple[str, ...]:
        """ExecuTorch's components, without the recipe's own kernels."""
        return tuple(c.name for c in self.components if c.name != CUSTOM_OPS)

    def option(self, name: str) -> str | None:
        """The value of an option; None when the plan does not set it."""
        return next((option.value for option in self.options if option.name == name), None)

    @property
    def build_digest(self) -> str:
        """Equal for plans that give the same runner, whatever the program and the reasons."""
        return digest_json(
            {
                "build_target": self.build_target,
                "portable_runner": self.portable_runner,
                "provider": self.provider.value,
                "executorch_version": self.executorch_version,
                "toolchain": self.toolchain.value if self.toolchain else None,
                "components": self.component_names,
                "options": {option.name: option.value for option in self.options},
                "selection": self.selection,
                "custom_ops": self.custom_ops,
            }
        )
