"""arm64 boards over ssh: their own sh and tools, and programs that this machine cannot start."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.devices.base import Bundle, Device
from etdeploy.devices.registry import open_device
from tests.support.arm64_board import MODEL, Arm64Board, MakeArm64Board, make_arm64_board
from tests.support.arm64_root import busybox_root, debian_root
from tests.support.bundles import compile_program, make_bundle
from tests.support.processes import eventually

_GCC = "aarch64-linux-gnu-gcc"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which(_GCC), reason="needs gcc-aarch64-linux-gnu"),
]

__all__ = ["make_arm64_board"]


@pytest.fixture
def board(make_arm64_board: MakeArm64Board) -> Arm64Board:
    """The one whose tools differ most from this machine's."""
    return make_arm64_board(busybox_root)


@pytest.fixture
def device(board: Arm64Board) -> Iterator[Device]:
    with contextlib.closing(open_device(board.spec)) as device:
        yield device


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("program"), _GCC, "-static")


@pytest.fixture
def bundle(program: Path) -> Bundle:
    return make_bundle({"fate": program})


@pytest.fixture(autouse=True)
def no_request_left() -> Iterator[None]:
    """A stop request of one test must not stop the next."""
    yield
    with cancel.trapped_signals():
        pass


def hanging_programs(board: Arm64Board) -> list[str]:
    """The command lines of the program itself and its child, without the shells around them."""
    return [line for line in board.processes("fate") if line.endswith("/fate hang")]


@pytest.mark.parametrize("obtain_root", [debian_root, busybox_root])
def test_a_board_is_known_by_what_it_says(
    make_arm64_board: MakeArm64Board, obtain_root: Callable[[], Path]
) -> None:
    with contextlib.closing(open_device(make_arm64_board(obtain_root).spec)) as device:
        facts = device.facts()
        assert (facts.abi, facts.model, facts.cpu_count) == ("aarch64", MODEL, os.cpu_count())
        assert facts.target.startswith("linux-aarch64")
        assert facts.memory_bytes
        assert device.state().load_average is not None
        assert not device.capabilities.is_here


def test_an_arm64_program_runs_to_each_of_its_ends(
    device: Device, board: Arm64Board, bundle: Bundle
) -> None:
    assert device.push(bundle).pushed_files == 1
    assert device.push(bundle).pushed_files == 0
    with device.open_run(bundle, "r1") as run:
        ended = run.run(["exit", "5"], 20)
        crashed = run.run(["crash"], 20)
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(run.run, ["hang"], 3)
            assert eventually(lambda: len(hanging_programs(board)) == 2)
            stopped = hanging.result()
    assert (ended.exit_code, ended.stdout) == (5, "out exit\n")
    assert (crashed.exit_code, crashed.signal_name) == (139, "SIGSEGV")
    assert stopped.timed_out
    assert eventually(lambda: not board.processes("fate"))
    assert not list((board.kept / "runs").iterdir())
    device.clean()
    assert not board.kept.exists()
