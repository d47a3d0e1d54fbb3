"""Why no backend took an operator, as the export wrote it down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from etdeploy.bench.records.stored import StoredRun
from etdeploy.profile.calls import Call
from etdeploy.program.folder import Provenance

_ADDED = "ExecuTorch added it after the backend had chosen"
# What delegates nothing, by its name in a recipe.
_NO_BACKEND = "portable"


class Reasons:
    """The operators that a backend left to the CPU.

    Args:
        outside: `details.delegation.outside` of `export.json`; None where it is not known.
        backend: What the program was exported for.
    """

    def __init__(self, outside: Sequence[dict[str, Any]] | None, backend: str | None) -> None:
        self._outside = outside
        self._backend = backend

    @classmethod
    def of(cls, run: StoredRun, method: str) -> Reasons:
        """Those of a method of a run's program; nothing is known of a finished one."""
        backend = run.record.program.backend
        try:
            path = run.path("export")
            provenance = Provenance.load_or_none(path) if path else None
            known = provenance.of(method) if provenance else None
        except (ValueError, KeyError, ValidationError):
            known = None
        delegation = known.details.get("delegation", {}) if known else {}
        return cls(delegation.get("outside"), backend)

    def for_call(self, call: Call) -> str:
        """The reason as a clause; empty for what a backend took, or where nothing is known."""
        if call.delegate or self._outside is None or self._backend in (None, _NO_BACKEND):
            return ""
        operator = call.name.partition(".")[0]
        same = [each for each in self._outside if each["operator"] == operator]
        if not same:
            return _ADDED
        here = [each for each in same if _place(each) == call.source] or same
        reasons = {each["reason"] for each in here}
        return str(reasons.pop() or "") if len(reasons) == 1 else ""


def _place(outside: dict[str, Any]) -> str:
    file = outside["file"]
    return f"{PurePath(file).name}:{outside['line']}" if file else ""
