"""One thing that `etdeploy doctor` looked for on this machine."""

from __future__ import annotations

from typing import Literal

from etdeploy.core.values import Value


class Finding(Value):
    """One thing that was looked for.

    `state` is ok, missing (a run on this machine needs it) or optional (only something else does).
    """

    name: str
    state: Literal["ok", "missing", "optional"]
    found: str | None
    needed_for: str
    remedy: str | None = None
