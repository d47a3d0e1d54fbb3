"""A built runner: what it consists of, and what is registered in it."""

from __future__ import annotations

from typing import Literal

from etdeploy.core.values import Value
from etdeploy.plan.model import Provider


class AppDetails(Value):
    """What is known of an app that runs a program.

    Attributes:
        id: Its application id or bundle id.
        version: As the app itself says it; empty where that is not known yet.
        artifacts: The packages that its ExecuTorch comes from, with their versions.
        build: What built it: gradle, sdk, xcodebuild; `given` where somebody else did.
    """

    id: str
    version: str = ""
    artifacts: tuple[str, ...] = ()
    build: str


class BuiltRunner(Value):
    """A runner in the cache.

    Attributes:
        path: Of the folder with the files.
        executable: Relative path of the runner itself.
        libraries: Relative paths of the shared libraries that it needs.
        loader: Relative path of the C library's loader, for a portable runner.
        target: The build target.
        sha256: Of the executable.
        operators: All operators that are registered in it, by full name.
        backends: All backends that are registered in it.
        executorch_version: Of its libraries.
        listed_by: What lists operators and backends: the `runner` itself, started here or under
            qemu, or the names in its `libraries` (from source, in the executable too) if it cannot
            be started here.
        size_bytes: Of the executable.
        provider: Where ExecuTorch came from: `wheel`, `source` or `prebuilt`.
        revision: Of the checkout that it was built from.
        options: The plan's cmake options, by name.
        app: Of an app that runs the program; None for a runner.
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
    listed_by: Literal["runner", "libraries"] = "runner"
    size_bytes: int = 0
    provider: Provider = Provider.WHEEL
    revision: str | None = None
    options: dict[str, str] = {}
    app: AppDetails | None = None
