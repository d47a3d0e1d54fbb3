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
    """A runner in the cache; paths are relative to the folder `path`.

    A portable runner has the C library's `loader`. `operators` and `backends` are all that are
    registered, as the runner itself lists them, started here or under qemu; or as the names in its
    libraries do (from source, in the executable too) if it cannot be started here. `options` are
    the plan's cmake options; `revision` is that of the checkout.
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
