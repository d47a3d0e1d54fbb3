"""Times two things in turn, A B A B, and prints medians and the ratio pair by pair.

Absolute times depend on the machine and on what else it does; a ratio taken within one run holds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

# What a benchmark measures is no part of the user's history.
os.environ.setdefault("ETDEPLOY_STORE", "none")


def wall_s(argv: list[str], env: Mapping[str, str] | None = None) -> float:
    """Seconds of one run of a command; its failure ends the benchmark with its output."""
    started = time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds


def compare(
    name: str,
    a: Callable[[], float],
    b: Callable[[], float],
    pairs: int = 9,
    *,
    warm_up: bool = True,
) -> tuple[float, float, float]:
    """Measures `pairs` pairs, after a warm-up of each; prints and returns (A, B, A / B)."""
    if warm_up:
        a(), b()
    times = [(a(), b()) for _ in range(pairs)]
    median_a = statistics.median(x for x, _ in times)
    median_b = statistics.median(y for _, y in times)
    ratio = statistics.median(x / y for x, y in times)
    print(f"{name}: {median_a:.4f} against {median_b:.4f}, ratio {ratio:.3f} ({pairs} pairs)")
    return median_a, median_b, ratio
