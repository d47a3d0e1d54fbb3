"""Facts about a processor of Linux x86_64 that change OpenVINO's results."""

from __future__ import annotations

from pathlib import Path

_SUMS_OF_BYTES = ("avx512_vnni", "avx_vnni", "amx_int8")


def has_vnni(cpu_facts: str | None = None) -> bool:
    """Whether a processor adds products of bytes in 32 bits, as VNNI and AMX do.

    Without these instructions, OpenVINO adds two products of bytes in 16 bits, where they saturate
    if the weights use all 8 bits.

    Args:
        cpu_facts: The text of /proc/cpuinfo; None for that of this machine.
    """
    if cpu_facts is None:
        try:
            cpu_facts = Path("/proc/cpuinfo").read_text()
        except OSError:
            return False
    return any(name in cpu_facts.split() for name in _SUMS_OF_BYTES)
