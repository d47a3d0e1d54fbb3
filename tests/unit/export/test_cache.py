"""Keys of exported programs: what changes them and what does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import FileDigests, Workspace
from etdeploy.core.hashing import sha256_file
from etdeploy.export import cache
from etdeploy.export.cache import ExportContext
from etdeploy.export.derive import export_spec
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.model import Recipe
from tests.support.checkpoints import write_checkpoint
from tests.support.export import program_key


def spec_of(model: dict[str, Any], **export: Any) -> ExportSpec:
    return export_spec(Recipe.model_validate({"model": model, "export": export}))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


@pytest.mark.parametrize(
    ("recipe", "other", "same"),
    [
        ({}, {"model": {"example": "convnet"}}, False),
        ({}, {"model": {"example": "mlp", "arguments": {"width": 64}}}, False),
        ({}, {"export": {"backend": "portable"}}, False),
        ({}, {"export": {"quantization": "int8_dynamic"}}, False),
        ({}, {"export": {"seed": 1}}, False),
        ({}, {"export": {"strict": True}}, False),
        ({}, {"benchmark": {"sizes": {"short": {"x.0": 2}}}}, False),
        ({}, {"benchmark": {"profile": False}}, True),
        ({"export": {"backend": "qnn"}}, {"benchmark": {"profile": False}}, False),
        ({"benchmark": {"method": "a"}}, {"benchmark": {"method": "b"}}, True),
        (
            {"benchmark": {"method": "a", "sizes": {"short": {"tokens": 4}}}},
            {"benchmark": {"method": "b", "sizes": {"short": {"tokens": 4}}}},
            False,
        ),
    ],
)
def test_which_choices_change_the_key(
    workspace: Workspace, recipe: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    first, second = (
        program_key(export_spec(Recipe.model_validate(each)), workspace)
        for each in ({"model": {"example": "mlp"}, **recipe},
                     {"model": {"example": "mlp"}, **recipe, **other})
    )  # fmt: skip
    assert first is not None
    assert (first == second) is same


def test_what_no_program_depends_on(workspace: Workspace) -> None:
    spec = spec_of({"example": "mlp"})
    places = {"benchmark.sizes.short": "recipe.yaml:9:5"}
    other = spec.model_copy(update={"places": places, "wanted_versions": {"torch": "1.0"}})
    assert program_key(spec, workspace) == program_key(other, workspace)


def test_a_program_may_be_that_of_other_rewrites(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(): ...\n")
    for model in ({"example": "mlp"}, {"python": f"{tmp_path}/net.py:make"}):
        spec = spec_of(model)
        arm = spec.model_copy(update={"rewrites": ("views",)})
        x86 = spec.model_copy(update={"rewrites": ("depthwise", "views")})
        key = ExportContext.now(arm, workspace).key(ModelSources())
        ExportContext.now(x86, workspace).remember_other(key, ModelSources())
        assert program_key(x86, workspace) == key
        # Made by itself after all, since the other program was deleted.
        situation = ExportContext.now(x86, workspace)
        own = situation.key(ModelSources())
        situation.remember(own, ModelSources())
        assert program_key(x86, workspace) == own != key


def test_a_finished_program_has_inputs_of_one_method(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "net.pte").write_bytes(b"program")

    def key(method: str) -> str | None:
        model = {"program": str(tmp_path / "net.pte")}
        recipe = Recipe.model_validate({"model": model, "benchmark": {"method": method}})
        return program_key(export_spec(recipe), workspace)

    assert key("decode") != key("prefill")


def test_a_tools_version_changes_the_key(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of({"example": "mlp"})
    before = program_key(spec, workspace)
    versions = {**cache.tool_versions(spec), "executorch": "9.9"}
    monkeypatch.setattr(cache, "tool_versions", lambda _: versions)
    assert program_key(spec, workspace) != before


@pytest.mark.parametrize("key", ["program", "custom_ops"])
def test_a_files_content_counts_not_its_place(
    workspace: Workspace, tmp_path: Path, key: str
) -> None:
    firsts = []
    for folder, text in (("a", "# one"), ("b", "# one"), ("c", "# two")):
        path = tmp_path / folder / "file.py"
        path.parent.mkdir()
        path.write_text(text)
        named = {key: str(path)}
        spec = spec_of(named) if key == "program" else spec_of({"example": "mlp"}, **named)
        firsts.append(ExportContext.now(spec, workspace).first)
    assert firsts[0] == firsts[1] != firsts[2]


class User:
    """A factory's file, a helper that it imports, and what an export noted about them."""

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        folder.mkdir()
        self.model, self.helper = folder / "model.py", folder / "helper.py"
        self.model.write_text("def make(): ...")
        self.helper.write_text("WIDTH = 3")
        self.spec = spec_of({"python": f"{self.model}:make"})
        self.workspace = workspace

    def remember(self) -> str:
        files = {str(p): sha256_file(p) for p in (self.model, self.helper)}
        sources = ModelSources(files=files)
        situation = ExportContext.now(self.spec, self.workspace)
        key = situation.key(sources)
        situation.remember(key, sources)
        return key

    def key(self) -> str | None:
        return program_key(self.spec, self.workspace)


@pytest.fixture
def user(tmp_path: Path, workspace: Workspace) -> User:
    return User(tmp_path / "project", workspace)


def test_a_changed_helper_has_no_known_key_until_it_is_changed_back(user: User) -> None:
    key = user.remember()
    user.helper.write_text("WIDTH = 4")
    assert user.key() is None
    other = user.remember()
    assert user.key() == other != key
    user.helper.write_text("WIDTH = 3")
    assert user.key() == key


@pytest.mark.parametrize("change", ["missing helper", "changed factory", "damaged memory"])
def test_without_what_an_export_read_there_is_no_known_key(user: User, change: str) -> None:
    user.remember()
    if change == "missing helper":
        user.helper.unlink()
    elif change == "changed factory":
        user.model.write_text("def make(): return 1")
    else:
        ExportContext.now(user.spec, user.workspace).memory_path.write_text("{")
    assert user.key() is None


def test_equal_code_elsewhere_has_the_same_key_once_it_is_exported(
    user: User, tmp_path: Path, workspace: Workspace
) -> None:
    key = user.remember()
    other = User(tmp_path / "copy", workspace)
    assert other.key() is None
    assert other.remember() == key


def test_a_file_that_an_argument_names_is_part_of_the_key(
    user: User, tmp_path: Path, workspace: Workspace
) -> None:
    data = tmp_path / "data.bin"
    data.write_bytes(b"1")
    user.spec = spec_of(
        {"python": f"{user.model}:make", "arguments": {"files": [{"path": str(data)}]}}
    )
    key = user.remember()
    assert user.key() == key
    data.write_bytes(b"2")
    assert user.key() is None


def test_another_version_of_an_imported_package_has_no_known_key(user: User) -> None:
    version = cache.installed_version("pydantic")
    situation = ExportContext.now(user.spec, user.workspace)
    now, before = (ModelSources(distributions={"pydantic": v}) for v in (version or "", "1.0"))
    situation.remember(situation.key(before), before)
    assert user.key() is None
    situation.remember(situation.key(now), now)
    assert user.key() == situation.key(now)


def test_without_code_of_the_user_the_key_does_not_wait_for_the_export(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "model.pt2").write_bytes(b"1")
    spec = spec_of({"exported": str(tmp_path / "model.pt2")})
    read = ModelSources(files={str(tmp_path / "model.pt2"): "digest"}, distributions={"numpy": "2"})
    assert ExportContext.now(spec, workspace).key(read) == program_key(spec, workspace)


def test_module_files_are_found_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "module.py").write_text("raise SystemExit('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert cache.module_file("package.module") == package / "module.py"
    assert cache.module_file("package") == package / "__init__.py"
    assert cache.module_file("package.absent") is None
    assert cache.module_file("absent.module") is None


def test_digests_are_remembered_while_a_file_stays_untouched(tmp_path: Path) -> None:
    path, store = tmp_path / "weights", tmp_path / "digests.json"
    path.write_bytes(b"1")
    os.utime(path, (1, 1))
    assert FileDigests(store).of(path) == sha256_file(path)
    assert FileDigests(store).of(tmp_path / "absent") is None
    path.write_bytes(b"2")
    os.utime(path, (1, 1))  # the content differs behind an equal size and date
    assert FileDigests(store).of(path) == sha256_file(path)


def test_a_damaged_store_of_digests_is_ignored(tmp_path: Path) -> None:
    path, store = tmp_path / "weights", tmp_path / "digests.json"
    path.write_bytes(b"1")
    store.write_text("[]")
    assert FileDigests(store).of(path) == sha256_file(path)


def test_a_folder_of_a_language_model_is_known_by_its_files(
    workspace: Workspace, tmp_path: Path
) -> None:
    here, there = (write_checkpoint(tmp_path / name) for name in ("here", "there"))
    os.utime(there / "model.safetensors", (1, 1))
    (there / "README.md").write_text("of no matter")
    (there / "modeling_x.py").write_text("that may not run")
    key = program_key(spec_of({"hf": str(here)}), workspace)
    assert key is not None
    assert program_key(spec_of({"hf": str(there)}), workspace) == key
    code = spec_of({"hf": str(there), "remote_code": str(there)})
    assert program_key(code, workspace) != key
    longer = spec_of({"hf": str(here)}, generation={"context": 64})
    assert program_key(longer, workspace) != key
    (there / "tokenizer.json").write_text("{}")
    assert program_key(spec_of({"hf": str(there)}), workspace) != key


@pytest.mark.parametrize("key", ["evaluate", "calibration"])
def test_a_text_counts_by_its_content(workspace: Workspace, tmp_path: Path, key: str) -> None:
    model, text, same = (tmp_path / name for name in ("model", "text.txt", "same.txt"))
    write_checkpoint(model)

    def key_with(path: object) -> str | None:
        named = {"generation": {key: str(path)}} if key == "evaluate" else {key: str(path)}
        spec = spec_of({"hf": str(model)}, quantization="8da4w", **named)
        return program_key(spec, workspace)

    for path in (text, same):
        path.write_text("some words")
    bundled = program_key(spec_of({"hf": str(model)}, quantization="8da4w"), workspace)
    named = key_with(text)
    assert len({named, bundled, key_with("none"), None}) == 4
    assert key_with(same) == named
    text.write_text("other words")
    assert key_with(text) != named


def test_a_language_model_of_the_hub_is_known_by_its_commit(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    spec = spec_of({"hf": "org/model"})
    assert program_key(spec, workspace) is None
    made = ExportContext.now(spec, workspace).key(
        ModelSources(commit="1" * 40, files={"x": "of no matter"})
    )
    refs = tmp_path / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("1" * 40)
    assert program_key(spec, workspace) == made
    assert program_key(spec_of({"hf": "org/model", "revision": "1" * 40}), workspace) == made
    (refs / "main").write_text("2" * 40)
    assert program_key(spec, workspace) not in (None, made)


def test_what_own_operators_read_counts_for_a_language_model_too(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "ops.py").write_text("")
    model = {"hf": "org/model", "revision": "1" * 40}
    spec = spec_of(model, custom_ops=str(tmp_path / "ops.py"))
    assert program_key(spec, workspace) is None
    situation = ExportContext.now(spec, workspace)
    situation.remember("of this commit", ModelSources(commit="1" * 40))
    assert situation.known_key() == "of this commit"
    other = spec_of({**model, "revision": "2" * 40}, custom_ops=str(tmp_path / "ops.py"))
    assert program_key(other, workspace) is None


def test_what_a_model_gives_does_not_depend_on_its_quantization(
    workspace: Workspace, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model")

    def key(**export: Any) -> str:
        spec = spec_of({"hf": str(folder)}, **export)
        return ExportContext.now(spec, workspace).references_key()

    known = key(quantization="8da4w")
    assert key(quantization="8da8w", seed=0) == known
    assert key(quantization="none", generation={"context": 64}) == known
    assert key(quantization="8da4w", seed=1) != known
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert key(quantization="8da4w") != known
