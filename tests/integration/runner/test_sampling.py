"""Draws of the runner's sampler follow the probabilities, and are the same on every processor."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from etdeploy.runner.fingerprint import runner_sources

pytestmark = pytest.mark.integration

_MAIN = """
#include <cstdio>
#include <cstdlib>

#include "generation/sampling.h"

int main(int, char** argv) {
  if (argv[1][0] == 'r') {
    Random random(1234567);
    for (int i = 0; i < 3; ++i) std::printf("%llu ", (unsigned long long)random.below(1ull << 63));
    return 0;
  }
  if (argv[1][0] == 'p') {
    const Powers powers;
    for (double x = 0; std::scanf("%lf", &x) == 1;)
      std::printf("%llu ", (unsigned long long)powers.minus(x));
    return 0;
  }
  Sampling sampling{std::atof(argv[1]), std::atoll(argv[2]), std::atof(argv[3]),
                    std::strtoull(argv[4], nullptr, 10)};
  std::vector<float> logits;
  for (float logit = 0; std::scanf("%f", &logit) == 1;) logits.push_back(logit);
  Sampler sampler(sampling);
  try {
    for (long i = std::atol(argv[5]); i != 0; --i)
      std::printf("%lld ", (long long)sampler.choose(logits.data(), logits.size()));
  } catch (const Failure& failure) {
    std::printf("%d %s", failure.code, failure.what());
  }
}
"""
# Arguments and logits or exponents to words.
Start = Callable[..., list[str]]


def _compile(folder: Path, compiler: str, *flags: str) -> Path:
    folder.mkdir()
    (folder / "main.cpp").write_text(_MAIN)
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", *flags]
    command += ['-DEXECUTORCH_VERSION="0"', "-I", str(runner_sources()), "main.cpp", "-o", "draw"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "draw"


def _start(*command: str, values: Sequence[float] | NDArray[np.floating[Any]] = ()) -> list[str]:
    # So many digits that the same number is read back.
    given = "\n".join(f"{value:.17g}" for value in values)
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    return ended.stdout.split()


@pytest.fixture(scope="module")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Start:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    path = _compile(tmp_path_factory.mktemp("sampling") / "here", compiler, "-O1")
    return lambda *arguments, values=(): _start(str(path), *map(str, arguments), values=values)


# Distances that matter: two tokens of equal logits, a rare one, one that can never be drawn.
_LOGITS = np.array([1.0, -2.5, 0.25, 1.0, 3.0, -6.0, 2.75, 0.0, -1.0, float("-inf")], np.float32)


def _expected(temperature: float, top_k: int, top_p: float) -> NDArray[np.float64]:
    scaled = _LOGITS.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if top_k:
        weights[order[top_k:]] = 0
    shares = np.cumsum(weights[order]) / weights.sum()
    weights[order[int(np.searchsorted(shares, top_p)) + 1 :]] = 0
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.7, 0, 1.0),
        (3.0, 0, 1.0),
        (1.0, 4, 1.0),
        (1.0, 0, 0.8),
        (2.0, 6, 0.7),
        (1.5, 0, 0.999),
        (0.5, 0, 0.9),
        (1.0, 100, 1.0),
    ],
)
def test_draws_follow_the_probabilities(
    draw: Start, temperature: float, top_k: int, top_p: float
) -> None:
    draws = 100_000
    drawn = Counter(map(int, draw(temperature, top_k, top_p, 1, draws, values=_LOGITS)))
    expected = draws * _expected(temperature, top_k, top_p)
    possible = np.flatnonzero(expected)
    assert set(drawn) <= set(possible.tolist())
    seen = np.array([drawn[i] for i in possible])
    chi_square = float(((seen - expected[possible]) ** 2 / expected[possible]).sum())
    freedom = len(possible) - 1
    # Six standard deviations above what chance gives.
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 1, 1.0), (1.0, 0, 1e-9), (1e-300, 0, 1.0)]
)
def test_the_most_probable_token_alone(
    draw: Start, temperature: float, top_k: int, top_p: float
) -> None:
    assert draw(temperature, top_k, top_p, 1, 50, values=_LOGITS) == ["4"] * 50


def test_the_first_of_equal_logits_is_greedy(draw: Start) -> None:
    assert draw(0, 0, 1.0, 1, 1, values=[0.5, 2.0, 2.0]) == ["1"]


def test_the_generator_is_the_published_one(draw: Start) -> None:
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    assert draw("random") == [str(number // 2) for number in published]


def test_powers_are_as_exact_as_logits(draw: Start) -> None:
    exponents = np.linspace(0, 24, 10_000)
    powers = np.array(draw("powers", values=exponents), dtype=np.float64)
    assert np.abs(powers / 2.0 ** (40 - exponents) - 1).max() < 2.0**-15
    near = exponents < 8
    assert np.abs(powers / 2.0 ** (40 - exponents) - 1)[near].max() < 2.0**-23
    assert draw("powers", values=[0, 1, 40, 1e300]) == [str(2**40), str(2**39), "0", "0"]


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([1.0, float("nan"), 2.0], "5 of 3 logits, 1 are NaN"),
        ([1.0, float("inf")], "5 the largest of 2 logits is infinity"),
        ([float("-inf")] * 4, "5 the largest of 4 logits is -infinity"),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers_are_told(
    draw: Start, logits: list[float], message: str, temperature: int
) -> None:
    assert " ".join(draw(temperature, 0, 1.0, 1, 1, values=logits)) == message


def _differently(folder: Path) -> list[tuple[str, ...]]:
    """Other ways to compute the same: with operations that may be fused, here and on arm64."""
    compiler, cross = str(shutil.which("c++")), shutil.which("aarch64-linux-gnu-g++")
    ways: list[tuple[str, ...]] = []
    cpu = Path("/proc/cpuinfo")
    if cpu.exists() and " fma " in cpu.read_text():
        fused = _compile(folder / "fused", compiler, "-O3", "-mfma", "-mavx2")
        ways.append((str(fused),))
    qemu = shutil.which("qemu-aarch64-static")
    if cross and qemu:
        arm64 = _compile(folder / "arm64", cross, "-O2", "-static")
        ways.append((qemu, str(arm64)))
    return ways


def test_every_processor_draws_the_same(draw: Start, tmp_path: Path) -> None:
    chance = np.random.default_rng(2)
    logits = chance.normal(0, 4, 2000).astype(np.float32)
    arguments = [("0.8", "0", "1", "7", "200"), ("1.3", "40", "0.95", "8", "200")]
    here = [draw(*given, values=logits) for given in arguments]
    exponents = chance.uniform(0, 41, 5000)
    powers = draw("powers", values=exponents)
    ways = _differently(tmp_path)
    if not ways:
        pytest.skip("there is no processor here that fuses operations")
    for way in ways:
        assert [_start(*way, *given, values=logits) for given in arguments] == here
        assert _start(*way, "powers", values=exponents) == powers
    assert len(set(here[0])) > 20
