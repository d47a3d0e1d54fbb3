"""etdeploy serve on a board that goes away.

Apart from the other tests, whose server has this machine: the board is the same one.
"""

from __future__ import annotations

from typing import Any

import openai
import pytest

from benchmarks.serve import served
from etdeploy.cache.workspace import Workspace
from tests.support.sshd import MakeBoard, make_board

pytestmark = pytest.mark.integration
__all__ = ["make_board"]


def test_a_board_that_comes_back_is_used_again(
    model: str,
    export_workspace: Workspace,
    make_board: MakeBoard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(export_workspace.root))
    board = make_board()
    asked: dict[str, Any] = {"model": "program.pte", "prompt": [1, 2, 3], "max_tokens": 4}
    with (
        served(["--model", model, "--device", board.spec]) as (address, _),
        openai.OpenAI(base_url=address, api_key="none", max_retries=0) as own,
    ):
        before = own.completions.create(**asked).choices[0].text
        board.stop()
        # The first loses the connection; the others find none, and have a prompt all the same.
        for _ in range(3):
            with pytest.raises(openai.InternalServerError) as caught:
                own.completions.create(**asked)
            assert caught.value.status_code == 503
        board.start()
        assert own.completions.create(**asked).choices[0].text == before
