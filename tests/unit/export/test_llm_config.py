"""An LlmConfig is checked by the classes of the installed release, before anything is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import RecipeError
from etdeploy.export.cache import ExportContext
from etdeploy.export.derive import export_spec
from etdeploy.export.llm_config import check_llm_config, content_of, output_notes
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.load import load_recipe

pytest.importorskip("omegaconf")
pytest.importorskip("executorch")


def spec_of(folder: Path, config: str) -> ExportSpec:
    path = folder / "r.yaml"
    inner = "".join(f"    {line}\n" for line in config.splitlines())
    path.write_text(f"export:\n  llm_config:\n{inner}")
    loaded = load_recipe(str(path))
    return export_spec(loaded.recipe, loaded.places)


def problems_of(folder: Path, config: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        check_llm_config(spec_of(folder, config))
    return list(map(str, caught.value.problems))


def test_keys_of_another_release_with_the_nearest(tmp_path: Path) -> None:
    config = "model: {use_kv_cach: true}\nmultimethod:\n  methods:\n    - {name: forward}\n"
    first, second = problems_of(tmp_path, config)
    assert f"{tmp_path}/r.yaml:3:13: unknown key 'export.llm_config.model.use_kv_cach'" in first
    assert "'use_kv_cache'" in first
    assert f"{tmp_path}/r.yaml:6:12: " in second
    assert "export.llm_config.multimethod.methods.0.name" in second
    assert "method_name" in second


def test_keys_of_hydra(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, "defaults: [other]\n")
    assert "Hydra" in problem


@pytest.mark.parametrize(
    ("config", "place", "says"),
    [
        ("model: {use_kv_cache: perhaps}\n", "3:13", "not a valid bool"),
        ("base: {model_class: lama}\n", "3:12", "llama3_2"),
        ("export: {max_seq_length: 64, max_context_length: 32}\n", "3:14", "max_context_length"),
        ("quantization: {qmode: 3w}\n", "3:20", "8da4w"),
        ("export: {export_only: true}\n", "3:14", "before there is a program"),
    ],
)
def test_values_that_the_release_does_not_take(
    tmp_path: Path, config: str, place: str, says: str
) -> None:
    [problem] = problems_of(tmp_path, config)
    assert problem.startswith(f"{tmp_path}/r.yaml:{place}: export.llm_config.")
    assert says in problem


def test_a_place_of_its_own_for_the_program_is_noted(tmp_path: Path) -> None:
    [note] = output_notes(spec_of(tmp_path, "export: {output_name: a.pte}\n"))
    assert "export.output_name" in note
    assert not list(output_notes(spec_of(tmp_path, "export: {max_seq_length: 64}\n")))


def test_the_same_files_elsewhere_are_the_same_export(tmp_path: Path) -> None:
    contexts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.pth").write_bytes(b"weights")
        spec = spec_of(tmp_path / name, "base: {checkpoint: model.pth}\n")
        assert content_of(spec) == {"base": {"checkpoint": f"{tmp_path}/{name}/model.pth"}}
        contexts.append(ExportContext.now(spec, Workspace(tmp_path / "cache")))
    assert contexts[0].first == contexts[1].first
    (tmp_path / "b" / "model.pth").write_bytes(b"others")
    assert ExportContext.now(spec, Workspace(tmp_path / "cache")).first != contexts[1].first
