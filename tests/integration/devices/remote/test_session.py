"""The loop that runs the scripts of a push, with the shells of Linux boards."""

from __future__ import annotations

import pytest

from etdeploy.devices.remote.shell import loop_command
from tests.integration.devices.remote.test_parts import Board, board

pytestmark = pytest.mark.integration

__all__ = ["board"]


def test_scripts_run_in_turn_each_by_itself(board: Board) -> None:
    said = (
        "run 2\ncd /; x=1\necho one; exit 3\n"
        'run 1\nprintf "%s\\n" "$code ${x-unset} a\\b  $(cat)"\n'
        "run 1\n\n"
    )
    lines = board.output(loop_command("m"), said)
    assert lines == ["one", "m:3", "3 unset a\\b  ", "m:0", "m:0"]


def test_a_script_hears_what_is_said_to_it_and_leaves_the_rest(board: Board) -> None:
    said = 'run 1\nread -r x <&3; echo "heard $x"\nhello\nstray\nrun 1\necho next\n'
    assert board.output(loop_command("m"), said) == ["heard hello", "m:0", "next", "m:0"]


def test_half_a_script_is_not_run(board: Board) -> None:
    assert board.output(loop_command("m") + "\necho released", "run 2\necho half\n") == ["released"]
