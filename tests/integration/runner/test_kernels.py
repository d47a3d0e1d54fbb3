"""Etdeploy's own kernels compute what their operators do eagerly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.processes import process
from tests.support.export import ROOT, run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    told: dict[str, Any] = run_support("kernels_run", str(tmp_path_factory.mktemp("kernels")))
    return told


def test_the_kernels_give_what_the_operators_do(found: dict[str, Any]) -> None:
    compared = {name: each for name, each in found.items() if isinstance(each, dict)}
    assert len(compared) > 30
    for name, each in compared.items():
        assert each["largest"] > 1, name
        assert each["error"] < 1e-5 * each["largest"], name


@pytest.mark.parametrize(
    ("bits", "dtype", "row"), [(8, "torch.int8", 27), (16, "torch.float16", 23)]
)
def test_rows_of_a_cache_are_packed_as_the_operator_does(
    found: dict[str, Any], bits: int, dtype: str, row: int
) -> None:
    [told] = found[f"packing {bits}"]
    assert (told["dtype"], told["shape"]) == (dtype, [3, 40, row])
    # Products may be rounded otherwise, which moves a number that is between two by one step.
    assert told["steps"] <= 1.001
    assert told["same_percent"] > 99.5
    assert told["lost_steps"] <= 0.501
    assert told["lost"]
    assert told["finite"]


@pytest.mark.parametrize("where", ["beyond the cache", "before it"])
def test_positions_outside_of_the_cache_are_refused(found: dict[str, Any], where: str) -> None:
    assert "0x12" in found[where]


_CHECK = ROOT / "tests/support/attention_check.cpp"
_QEMU = shutil.which("qemu-aarch64-static")
_CROSS = shutil.which("aarch64-linux-gnu-g++")
# The instructions that processors have for an int8 cache.
_ARM = {"cortex-a53": "neon", "cortex-a76": "dotprod", "max": "i8mm"}


def _checked(
    compiler: str,
    folder: Path,
    *options: str,
    start: tuple[str, ...] = (),
    check: Path = _CHECK,
) -> list[Any]:
    built = folder / check.stem
    if not built.exists():
        warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi")
        headers = f"-I{ROOT / 'templates/runner/kernels'}"
        argv = (compiler, "-std=c++17", *options, *warnings, headers, str(check), "-o", str(built))
        outcome = process.run(process.Request(argv))
        assert outcome.ok, outcome.stderr[-3000:]
    outcome = process.run(process.Request((*start, str(built))))
    assert outcome.ok, outcome.stderr[-3000:]
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def _assert_right(cases: list[Any]) -> None:
    assert len(cases) == 45
    for each in cases:
        place = f"{each['case']}, {each['cache']}"
        # Integers round queries and weights: by less than a fiftieth of what the cache loses.
        whole = each["instructions"] != "floats" and each["cache"] == "int8"
        assert each["error"] < (each["lost"] / 50 if whole else 1e-5), place
        assert each["largest"] > 1, place
        assert each["alone"] or each["case"].startswith("a prompt"), place


def test_few_tokens_have_the_bits_that_each_has_alone(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    _assert_right(_checked(compiler, tmp_path, "-O1"))


@pytest.mark.nightly
@pytest.mark.skipif(not _CROSS, reason="g++-aarch64-linux-gnu is not installed")
@pytest.mark.skipif(not _QEMU, reason="qemu-user-static is not installed")
def test_all_instructions_of_arm_give_the_same_bits(tmp_path: Path) -> None:
    found = {
        cpu: _checked(str(_CROSS), tmp_path, "-O2", "-static", start=(str(_QEMU), "-cpu", cpu))
        for cpu in _ARM
    }
    for cpu, instructions in _ARM.items():
        assert {each["instructions"] for each in found[cpu]} == {instructions}
        _assert_right(found[cpu])
    digests = [[each["digest"] for each in cases] for cases in found.values()]
    assert digests[0] == digests[1] == digests[2]


_LINEAR = ROOT / "tests/support/linear_check.cpp"


def _assert_same(cases: list[Any]) -> None:
    """All ways to compute a case give the same bits, and those of a row do not depend on others."""
    digests: dict[str, set[str]] = {}
    for each in cases:
        assert each["error"] < 1e-5 * each["largest"], each
        assert each["largest"] > 1, each
        assert each["alone"], each
        digests.setdefault(each["case"], set()).add(each["digest"])
    assert len(digests) == 7
    assert all(len(each) == 1 for each in digests.values())


def test_all_ways_to_multiply_give_the_same_bits(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    found = _checked(compiler, tmp_path, "-O2", check=_LINEAR)
    assert "plain" in {each["set"] for each in found}
    _assert_same(found)


@pytest.mark.nightly
@pytest.mark.skipif(not _CROSS, reason="g++-aarch64-linux-gnu is not installed")
@pytest.mark.skipif(not _QEMU, reason="qemu-user-static is not installed")
def test_products_on_arm_are_those_of_x86(tmp_path: Path) -> None:
    emulated = (str(_QEMU), "-cpu", "max")
    found = _checked(str(_CROSS), tmp_path, "-O2", "-static", start=emulated, check=_LINEAR)
    assert {each["set"] for each in found} == {"plain"}
    if compiler := shutil.which("c++"):
        (tmp_path / "here").mkdir()
        found += _checked(compiler, tmp_path / "here", "-O2", check=_LINEAR)
    _assert_same(found)
