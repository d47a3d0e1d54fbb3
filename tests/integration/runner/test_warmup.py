"""When the runner's warm-up ends, on series of times that were measured and on made-up ones.

The measured ones are of a machine with two processors that other work shared.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from etdeploy.runner.fingerprint import runner_sources

pytestmark = pytest.mark.integration

_MAIN = """
#include <cstdio>
#include "warmup.h"

int main() {
  Warmup warmup;
  for (double ms = 0; !warmup.over() && std::scanf("%lf", &ms) == 1;) {
    warmup.add(static_cast<int64_t>(ms * 1e6));
  }
  std::printf("%u %d %d", warmup.inferences(), warmup.over(), warmup.steady());
}
"""
_SERIES = Path(__file__).resolve().parents[2] / "data" / "warmup"
Rule = Callable[[Sequence[float]], tuple[int, bool, bool]]


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Rule:
    """Gives the number of inferences, whether it ended, and whether the times were steady."""
    folder = tmp_path_factory.mktemp("warmup")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (folder / "main.cpp").write_text(_MAIN)
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += ["-I", str(runner_sources()), "main.cpp", "-o", "rule"]
    subprocess.run(command, cwd=folder, check=True)

    def apply(times_ms: Sequence[float]) -> tuple[int, bool, bool]:
        given = "\n".join(f"{ms:.9f}" for ms in times_ms)
        said = subprocess.run(
            [folder / "rule"], input=given, capture_output=True, text=True, check=True
        ).stdout
        inferences, over, steady = map(int, said.split())
        return inferences, bool(over), bool(steady)

    return apply


# Of `mlp_slow_core`, the first quarter of a second is three times slower, on a core that other work
# shares: the times do not fall meanwhile, and nothing tells that they will.
@pytest.mark.parametrize("path", sorted(_SERIES.glob("*.txt")), ids=lambda path: path.stem)
def test_measured_series_are_steady_soon(rule: Rule, path: Path) -> None:
    times_ms = [float(line) for line in path.read_text().split()]
    inferences, over, steady = rule(times_ms)
    assert over
    assert steady
    assert 100 <= sum(times_ms[:inferences]) <= 500


def test_a_frequency_that_rises_is_waited_for(rule: Rule) -> None:
    # From a third of the frequency to all of it in 400 ms.
    times_ms: list[float] = []
    while sum(times_ms) < 1500:
        times_ms.append(2.0 / min(1.0, 1 / 3 + 2 / 3 * sum(times_ms) / 400))
    inferences, _, steady = rule(times_ms)
    assert steady
    assert sum(times_ms[:inferences]) > 400
    assert times_ms[inferences] == 2.0


def test_slow_falling_is_seen_although_neighbours_hardly_differ(rule: Rule) -> None:
    # 1.5 % in a block of 50 ms, for a second.
    times_ms: list[float] = []
    while sum(times_ms) < 2000:
        times_ms.append(1.0 * 0.985 ** (min(sum(times_ms), 1000) / 50))
    inferences, _, steady = rule(times_ms)
    assert steady
    assert sum(times_ms[:inferences]) > 1000


def test_noise_of_any_size_ends_it(rule: Rule) -> None:
    chance = np.random.default_rng(7)
    took_ms = []
    for _ in range(50):
        times_ms = (2.0 * chance.lognormal(0, 1, 5000)).tolist()
        inferences, _, steady = rule(times_ms)
        assert steady
        took_ms.append(sum(times_ms[:inferences]))
    assert statistics.median(took_ms) < 400
    assert max(took_ms) < 2000


def test_times_that_rise_need_no_warm_up(rule: Rule) -> None:
    times_ms = [10.0 * 1.01**i for i in range(100)]
    assert rule(times_ms) == (15, True, True)


def test_a_slow_model_warms_up_for_three_inferences(rule: Rule) -> None:
    assert rule([5000.0] * 9) == (3, True, True)
    assert rule([9000.0, 7000.0, 5000.0, 4000.0]) == (3, True, False)


def test_it_ends_after_ten_seconds_at_the_latest(rule: Rule) -> None:
    times_ms = [1000.0 * 0.97**i for i in range(100)]
    inferences, over, steady = rule(times_ms)
    assert (over, steady) == (True, False)
    assert 10_000 <= sum(times_ms[:inferences]) < 11_000


def test_it_ends_after_a_million_inferences_that_the_clock_cannot_see(rule: Rule) -> None:
    assert rule([0.0] * 1_000_001) == (1_000_000, True, False)
