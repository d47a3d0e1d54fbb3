"""Getting a finished program from the hub, from a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.export.derive import export_spec
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.fetch import fetch_program
from etdeploy.recipe.load import load_recipe
from tests.support.hub import COMMIT, Hub, serving
from tests.unit.export.hf.test_fetch import cache, point_at  # noqa: F401 - a fixture

pytest.importorskip("huggingface_hub.constants")
FILES = ("model.pte", "weights.ptd", "tokenizer.json", "README.md", "model.safetensors")


@pytest.fixture
def hub(
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Hub]:
    del cache
    folder = tmp_path / "given"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(name)
    with serving(Hub("org/model", folder)) as server:
        point_at(server.address, monkeypatch)
        yield server


def spec_of(folder: Path, named: str = "org/model") -> ExportSpec:
    path = folder / "r.yaml"
    path.write_text(f"model: {{program: {named}}}\n")
    loaded = load_recipe(str(path))
    return export_spec(loaded.recipe, loaded.places)


def failure(spec: ExportSpec) -> ExportFailure:
    assert spec.hub_program
    with pytest.raises(WorkerError) as caught:
        fetch_program(spec, spec.hub_program, lambda *_: None)
    return caught.value.failure


@pytest.mark.parametrize("named", ["org/model", "org/model/model.pte"])
def test_what_belongs_to_a_program_is_downloaded(hub: Hub, tmp_path: Path, named: str) -> None:
    spec = spec_of(tmp_path, named)
    assert spec.source == named
    assert spec.hub_program
    found = fetch_program(spec, spec.hub_program, lambda *_: None)
    assert found.commit == COMMIT
    program = Path(str(found.program))
    assert program.read_text() == "model.pte"
    assert {path.name for path in program.parent.iterdir()} == {*FILES[:3]}
    assert not any("safetensors" in path for path in hub.asked)


def test_a_program_of_the_cache_where_the_hub_cannot_be_reached(hub: Hub, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "org/model/model.pte")
    assert spec.hub_program
    before = fetch_program(spec, spec.hub_program, lambda *_: None)
    hub.refusal = (503, {})
    assert fetch_program(spec, spec.hub_program, lambda *_: None) == before


def test_several_programs_are_listed(hub: Hub, tmp_path: Path) -> None:
    hub.files["other.pte"] = b"other"
    found = failure(spec_of(tmp_path))
    assert "2 programs: model.pte, other.pte" in found.message
    assert "model.program=org/model/model.pte" in str(found.remedy)
    assert str(found.file).endswith("r.yaml:1:9")
    found = failure(spec_of(tmp_path, "org/model/mode.pte"))
    assert "no file mode.pte; it has model.pte, other.pte" in found.message


def test_a_repository_without_a_program(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.pte"]
    assert "0 programs" in failure(spec_of(tmp_path)).message


def test_a_repository_that_is_not_there(hub: Hub, tmp_path: Path) -> None:
    found = failure(spec_of(tmp_path, "org/none"))
    assert "org/none" in found.message
    assert str(found.file).endswith("r.yaml:1:9")
    del hub
