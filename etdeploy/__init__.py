"""Puts a PyTorch model on a device with ExecuTorch and times it there.

    import etdeploy

    with etdeploy.open(model="./SmolLM2", device="ssh:pi@board") as session:
        for piece in session.generate("The sky is", max_new_tokens=32):
            print(piece, end="")

docs/python.md is a tutorial. Names are imported when they are used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it, without the import of typing

if TYPE_CHECKING:
    from etdeploy.bench.text_generator import Answer
    from etdeploy.core.errors import (
        DeviceError,
        DeviceLostError,
        EtdeployError,
        RecipeError,
        RunError,
        SessionBusyError,
        UsageError,
    )
    from etdeploy.session.aio import AsyncSession
    from etdeploy.session.api import open_session as open  # noqa: A004 - as users write it
    from etdeploy.session.api import open_session_async as open_async
    from etdeploy.session.kv_cache import KeyValues
    from etdeploy.session.session import Session
    from etdeploy.session.state import SavedState
    from etdeploy.session.text import ContinuationScore, GeneratedText, Timings

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AsyncSession",
    "ContinuationScore",
    "DeviceError",
    "DeviceLostError",
    "EtdeployError",
    "GeneratedText",
    "KeyValues",
    "RecipeError",
    "RunError",
    "SavedState",
    "Session",
    "SessionBusyError",
    "Timings",
    "UsageError",
    "__version__",
    "open",
    "open_async",
]

_ERRORS = "core.errors"
# Where each name is, and what it is called there.
_PLACES = {
    "open": ("session.api", "open_session"),
    "open_async": ("session.api", "open_session_async"),
    "Answer": ("bench.text_generator", "Answer"),
    "AsyncSession": ("session.aio", "AsyncSession"),
    "ContinuationScore": ("session.text", "ContinuationScore"),
    "GeneratedText": ("session.text", "GeneratedText"),
    "KeyValues": ("session.kv_cache", "KeyValues"),
    "SavedState": ("session.state", "SavedState"),
    "Session": ("session.session", "Session"),
    "Timings": ("session.text", "Timings"),
    "DeviceError": (_ERRORS, "DeviceError"),
    "DeviceLostError": (_ERRORS, "DeviceLostError"),
    "EtdeployError": (_ERRORS, "EtdeployError"),
    "RecipeError": (_ERRORS, "RecipeError"),
    "RunError": (_ERRORS, "RunError"),
    "SessionBusyError": (_ERRORS, "SessionBusyError"),
    "UsageError": (_ERRORS, "UsageError"),
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PLACES[name]
    found: object = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]
