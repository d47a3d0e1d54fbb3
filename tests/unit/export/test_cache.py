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
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import ExportSpec, export_spec
from etdeploy.recipe.model import Recipe
from tests.support.checkpoints import write_checkpoint
from tests.support.export import program_key


def spec_of(model: dict[str, Any], **export: Any) -> ExportSpec:
    return export_spec(Recipe.model_validate({"model": model, "export": export}))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


def test_the_key_of_an_example_is_known_and_stable(workspace: Workspace) -> None:
    spec = spec_of({"example": "mlp"})
    key = program_key(spec, workspace)
    assert key is not None
    assert program_key(spec, workspace) == key


@pytest.mark.parametrize(
    "other",
    [
        {"model": {"example": "convnet"}},
        {"model": {"example": "mlp", "arguments": {"width": 64}}},
        {"model": {"example": "mlp"}, "backend": "portable"},
        {"model": {"example": "mlp"}, "quantization": "int8_dynamic"},
        {"model": {"example": "mlp"}, "seed": 1},
        {"model": {"example": "mlp"}, "strict": True},
    ],
)
def test_each_choice_changes_the_key(workspace: Workspace, other: dict[str, Any]) -> None:
    plain = program_key(spec_of({"example": "mlp"}), workspace)
    assert program_key(spec_of(**other), workspace) != plain


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


def test_a_qnn_program_that_is_to_be_profiled_is_another(workspace: Workspace) -> None:
    def key(backend: str, profile: bool) -> str | None:
        sections = {"export": {"backend": backend}, "benchmark": {"profile": profile}}
        recipe = Recipe.model_validate({"model": {"example": "mlp"}, **sections})
        return program_key(export_spec(recipe), workspace)

    assert key("qnn", True) != key("qnn", False)
    assert key("xnnpack", True) == key("xnnpack", False)


@pytest.mark.parametrize(
    ("sizes", "same"), [({}, True), ({"short": {"tokens": 4}}, False)], ids=["plain", "sizes"]
)
def test_another_method_needs_no_export_unless_there_are_sizes(
    workspace: Workspace, sizes: dict[str, Any], same: bool
) -> None:
    def key(method: str | None) -> str | None:
        benchmark = {"method": method, "sizes": sizes}
        recipe = Recipe.model_validate({"model": {"example": "mlp"}, "benchmark": benchmark})
        return program_key(export_spec(recipe), workspace)

    assert (key("decode") == key("prefill") == key(None)) is same


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


def test_sizes_change_the_key_and_their_places_do_not(workspace: Workspace) -> None:
    spec = spec_of({"example": "mlp"})
    sized = spec.model_copy(update={"sizes": {"short": {"x.0": 2}}})
    moved = sized.model_copy(update={"places": {"benchmark.sizes.short": "recipe.yaml:9:5"}})
    keys = [program_key(s, workspace) for s in (spec, sized, moved)]
    assert keys[0] != keys[1] == keys[2]


def test_versions_that_are_wanted_do_not_change_the_key(workspace: Workspace) -> None:
    spec = spec_of({"example": "mlp"})
    other = spec.model_copy(update={"wanted_versions": {"torch": "1.0"}})
    assert program_key(spec, workspace) == program_key(other, workspace)


def test_a_files_content_counts_not_its_place(workspace: Workspace, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.pte", "b.pte", "c.pte")]
    for path, content in zip(paths, (b"same", b"same", b"other"), strict=True):
        path.write_bytes(content)
    keys = [program_key(spec_of({"program": str(p)}), workspace) for p in paths]
    assert keys[0] == keys[1] != keys[2]


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


def test_code_that_was_never_exported_has_no_known_key(user: User) -> None:
    assert user.key() is None


def test_unchanged_and_touched_files_keep_the_key(user: User) -> None:
    key = user.remember()
    assert user.key() == key
    os.utime(user.helper, (1, 1))
    assert user.key() == key


def test_a_changed_helper_has_no_known_key_until_it_is_changed_back(user: User) -> None:
    key = user.remember()
    user.helper.write_text("WIDTH = 4")
    assert user.key() is None
    other = user.remember()
    assert user.key() == other != key
    user.helper.write_text("WIDTH = 3")
    assert user.key() == key


def test_a_missing_helper_has_no_known_key(user: User) -> None:
    user.remember()
    user.helper.unlink()
    assert user.key() is None


def test_a_changed_factory_has_no_known_key(user: User) -> None:
    user.remember()
    user.model.write_text("def make(): return 1")
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
    now, before = (
        ModelSources(distributions={"pydantic": v})
        for v in (
            version or "",
            "1.0",
        )
    )
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


def test_a_damaged_note_is_no_note(user: User) -> None:
    user.remember()
    ExportContext.now(user.spec, user.workspace).memory_path.write_text("{")
    assert user.key() is None


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


def test_a_text_to_evaluate_counts_by_its_content(workspace: Workspace, tmp_path: Path) -> None:
    model, text, same = (tmp_path / name for name in ("model", "text.txt", "same.txt"))
    write_checkpoint(model)

    def key(**generation: Any) -> str | None:
        return program_key(spec_of({"hf": str(model)}, generation=generation), workspace)

    for path in (text, same):
        path.write_text("some words")
    named = key(evaluate=str(text))
    assert named not in (None, key())
    assert key(evaluate=str(same)) == named
    assert key(evaluate=str(text), evaluate_tokens=64) != named
    text.write_text("other words")
    assert key(evaluate=str(text)) != named


def test_a_calibration_text_counts_by_its_content(workspace: Workspace, tmp_path: Path) -> None:
    model, text, same = (tmp_path / name for name in ("model", "text.txt", "same.txt"))
    write_checkpoint(model)

    def key(**export: Any) -> str | None:
        spec = spec_of({"hf": str(model)}, quantization="8da4w", **export)
        return program_key(spec, workspace)

    for path in (text, same):
        path.write_text("some words")
    named, bundled, none = key(calibration=str(text)), key(), key(calibration="none")
    assert len({named, bundled, none, None}) == 4
    assert key(calibration=str(same)) == named
    text.write_text("other words")
    assert key(calibration=str(text)) != named


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
