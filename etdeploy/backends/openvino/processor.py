"""What a processor of Linux x86_64 means for OpenVINO's results."""

from __future__ import annotations

from pathlib import Path

_SUMS_OF_BYTES = ("avx512_vnni", "avx_vnni", "amx_int8")


def multiplies_bytes(cpu_facts: str) -> bool:
    """Whether a processor adds products of bytes in 32 bits.

    Without such instructions OpenVINO adds pairs of them in 16 bits, which cuts large sums off:
    with ONEDNN_MAX_CPU_ISA=AVX2, outputs of the examples in int8_static stray by 16 to 29 % of the
    largest, and by 2 % where nothing is hidden.

    Args:
        cpu_facts: The text of /proc/cpuinfo.
    """
    return any(name in cpu_facts.split() for name in _SUMS_OF_BYTES)


def cpu_facts() -> str:
    """The text of /proc/cpuinfo; empty where there is none."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
