"""The door for plain doit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from etdeploy.cache.tidy import alone
from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.locks import try_lock
from etdeploy.graph import dodo


def is_free(lock: Path) -> bool:
    with try_lock(lock) as free:
        return free


def test_no_other_run_of_the_recipe_begins_while_doit_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(dodo, "atexit", SimpleNamespace(register=at_exit.append))
    monkeypatch.setattr(dodo, "doit_variable", {"device": "host"}.get)
    monkeypatch.setattr(dodo, "make_steps", lambda _resolved: ())
    monkeypatch.setattr(
        dodo, "plain_doit_tasks", lambda _steps, state: (iter(()), {"state": state})
    )
    monkeypatch.chdir(tmp_path)
    _, config = dodo.open_pipeline()
    workspace = Workspace.default()
    state = config["state"]
    lock = workspace.lock_path("state", state.parent.name, state.name)
    assert not is_free(lock)
    with alone(workspace) as free:
        assert not free, "the cache is in use, too"
    [end] = at_exit
    end()
    assert is_free(lock)
    with alone(workspace) as free:
        assert free
