"""What this machine has of the hub, found without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.export.hf.check import folder_here, is_whole
from etdeploy.export.spec import HfModel
from etdeploy.recipe.hub_cache import cache_folder, cached_commit, snapshot
from tests.support.checkpoints import write_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_is_where_huggingface_hub_has_it(tmp_path: Path) -> None:
    home = Path.home()
    assert cache_folder({}) == home / ".cache/huggingface/hub"
    variables = {"XDG_CACHE_HOME": "/x", "HF_HOME": "$HOME/h", "HUGGINGFACE_HUB_CACHE": "/old"}
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert cache_folder({"HF_HOME": "~/h"}) == home / "h/hub"
    assert cache_folder(variables) == Path("/old")
    assert cache_folder({**variables, "HF_HUB_CACHE": "/new"}) == Path("/new")


def test_a_revision_stays_at_the_commit_that_it_had(cache: Path) -> None:
    refs = cache / "models--org--model" / "refs"
    assert cached_commit("org/model", "main") is None
    (refs / "refs/pr").mkdir(parents=True)
    (refs / "main").write_text(COMMIT + "\n")
    (refs / "refs/pr/1").write_text(COMMIT)
    (refs / "odd").write_text("not a commit")
    (cache / "secret").write_text(COMMIT)
    assert cached_commit("org/model", "main") == COMMIT
    assert cached_commit("org/model", "refs/pr/1") == COMMIT
    assert cached_commit("org/model", COMMIT) == COMMIT
    for revision in ("odd", "gone", "refs", "../../secret", str(cache / "secret"), "a\0b"):
        assert cached_commit("org/model", revision) is None, revision


def test_a_snapshot_counts_only_if_it_is_whole(cache: Path) -> None:
    model = HfModel(id="org/model", revision=COMMIT)
    assert folder_here(model) is None
    folder = write_checkpoint(snapshot("org/model", COMMIT))
    assert folder_here(model) == folder
    assert is_whole(folder, code=True)
    write_checkpoint(folder, auto_map={"AutoModelForCausalLM": "modeling_x.M"})
    assert is_whole(folder, code=False)
    assert not is_whole(folder, code=True)
    (folder / "modeling_x.py").write_text("")
    assert is_whole(folder, code=True)
    (folder / "model.safetensors").unlink()
    assert not is_whole(folder, code=False)
