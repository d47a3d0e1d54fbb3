"""The runtime plan: what a runner is made of, and why."""

from __future__ import annotations

from etdeploy.core.values import Explained, Value


class RuntimePlan(Value):
    """Everything that decides how a runner is built.

    Attributes:
        target: What the user asked for, e.g. `android-arm64`.
        build_target: What is compiled, e.g. `linux-aarch64` for the portable runner.
        portable_runner: Whether the runner brings its own C library and loader to the device.
        provider: `wheel` or `source`, with the reason.
        executorch_version: Of the libraries.
        toolchain: File in toolchains/ when cross-compiling, with the reason; None for a native one.
        components: Libraries that are linked; `value` is the CMake target.
        options: cmake options; the list has what goes on the command line as -Dname=value.
        program_sha256: The program that it was derived from.
        provisional: True while only the recipe is known.
    """

    target: str
    build_target: str
    portable_runner: bool
    provider: Explained
    executorch_version: str
    toolchain: Explained | None
    components: tuple[Explained, ...]
    options: tuple[Explained, ...]
    program_sha256: str | None
    provisional: bool = False


class BuiltRunner(Value):
    """A runner in the cache.

    Attributes:
        path: Of the folder with the files.
        executable: Relative path of the runner itself.
        libraries: Relative paths of the shared libraries that go along.
        loader: Relative path of the C library's loader for a portable runner.
        target: The build target.
        sha256: Of the executable.
        operators: All that are registered in it, by full name.
        backends: All delegates that are registered in it.
        executorch_version: Of its libraries.
    """

    path: str
    executable: str
    libraries: tuple[str, ...]
    loader: str | None
    target: str
    sha256: str
    operators: tuple[str, ...]
    backends: tuple[str, ...]
    executorch_version: str
