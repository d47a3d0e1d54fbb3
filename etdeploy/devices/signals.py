"""Signals by the numbers of Linux, on any machine."""

from __future__ import annotations

_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}


def signal_of(exit_code: int) -> str | None:
    """The signal behind a shell's exit code of 128 + n; None for a plain exit code."""
    return _NAMES.get(exit_code - 128)


def number_of(name: str) -> int | None:
    """The number of a signal; None for a name that Linux does not have."""
    return next((number for number, known in _NAMES.items() if known == name), None)
