"""Built-in backends, and those of other packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.backends.registry import (
    BUILT_IN,
    GROUP,
    backend_named,
    backend_of,
    built_in,
    code_of,
    exporting_backends,
    exporting_names,
    find_backend,
    known_backends,
    plugged_findings,
    release_of,
)
from etdeploy.backends.values import Workstation
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.core.processes import process
from etdeploy.export.derive import export_spec
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.reference import schema
from tests.support.documented_package import lay_out_package
from tests.support.export import program_key
from tests.support.facts import lacks
from tests.support.plugins import forgetting_backends, install_plugin
from tests.support.runtime_values import make_method, make_plan, make_program

ROOT = Path(__file__).resolve().parents[3]
_LAB = "from etdeploy.backends.base import Backend\nLAB = Backend({})\n"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with forgetting_backends():
        yield


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the package that docs/backends.md shows."""
    folder = lay_out_package(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    for name in [m for m in sys.modules if m.split(".")[0] == "etdeploy_gemm"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def _lab(folder: Path, patch: pytest.MonkeyPatch, facts: str, entry: str = "lab") -> None:
    install_plugin(folder, patch, GROUP, f"{entry} = lab_b:LAB", lab_b=_LAB.format(facts))


def _station(folder: Path) -> Workstation:
    return Workstation({}, folder)


def test_names_ids_and_components_belong_to_one_backend_each() -> None:
    for values in (
        [b.delegate_id for b in BUILT_IN.values() if b.delegate_id],
        [b.component for b in BUILT_IN.values() if b.component],
        [b.switch for b in BUILT_IN.values() if b.switch],
    ):
        assert len(values) == len(set(values))


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_entry_states_what_its_backend_states(name: str) -> None:
    backend, entry = built_in(name), BUILT_IN[name]
    assert backend.name == name
    assert (backend.delegate_id, backend.component, backend.switch) == (
        entry.delegate_id, entry.component, entry.switch,
    )  # fmt: skip
    assert (find_backend(name) is backend) == bool(backend.lowering)


@pytest.mark.usefixtures("real_processes")
def test_a_plan_imports_the_backend_of_its_recipe_alone() -> None:
    code = (
        "import sys\n"
        "from etdeploy.plan.derive import Available, derive_plan\n"
        "from etdeploy.recipe.load import load_recipe\n"
        "from etdeploy.targets.platforms import find_target\n"
        "target = find_target('linux-x86_64')\n"
        "recipe = load_recipe('xnnpack').recipe\n"
        "derive_plan(recipe, None, target, target, Available('1.5.1'))\n"
        "print(*(name for name in ('xnnpack', 'vulkan', 'qnn.backend', 'openvino')\n"
        "        if f'etdeploy.backends.{name}' in sys.modules))\n"
    )
    assert process.run(process.Request((sys.executable, "-c", code))).stdout.split() == ["xnnpack"]


def test_the_guide_lists_those_that_a_recipe_can_name() -> None:
    guide = (ROOT / "docs" / "backends.md").read_text()
    table = guide.partition("| --- |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(exporting_backends())


def test_a_known_name_looks_for_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: object) -> None:
        raise AssertionError("every installed package was searched")

    monkeypatch.setattr("etdeploy.backends.registry.load_plugin", looked)
    monkeypatch.setattr("etdeploy.backends.registry.plugin_names", looked)
    assert find_backend("xnnpack") is backend_of("XnnpackBackend")
    assert len(known_backends()) == len(BUILT_IN)


def test_a_backend_that_is_only_run_can_get_its_lowering_from_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = "name='vgf', delegate_id='VgfBackend', component='backend_vgf', lowering='lab_b'"
    _lab(tmp_path, monkeypatch, facts, entry="vgf")
    found = find_backend("vgf")
    assert found is not None
    assert found.lowering == "lab_b"
    assert backend_of("VgfBackend") is found
    assert [b.name for b in known_backends()].count("vgf") == 1
    assert exporting_names() == (*exporting_backends(), "vgf")
    assert release_of("vgf") == "etdeploy-lab 1.2"
    assert [f.state for f in plugged_findings(_station(tmp_path))] == ["ok"]
    assert load_recipe("xnnpack", ["export.backend=vgf"]).recipe.export.backend == "vgf"


def test_the_documented_package_is_a_backend_with_recipes(package: Path) -> None:
    loaded = load_recipe("gemm/mlp")
    assert loaded.path == package / "etdeploy_gemm" / "recipes" / "mlp.yaml"
    backend = backend_named(loaded.recipe.export.backend)
    assert (backend.name, backend.delegate_id) == ("gemm", "XnnpackBackend")
    assert export_spec(loaded.recipe).options == {"convolutions": False}
    assert exporting_names()[-1] == "gemm"
    properties = schema()["$defs"]["Export"]["properties"]
    assert "gemm" in properties["backend"]["enum"]
    assert "convolutions" in properties["options"]["properties"]
    found = [(f.name, f.found) for f in plugged_findings(_station(package))]
    assert found == [("backend gemm", "etdeploy-gemm 1.0")]


def test_the_doctor_survives_the_findings_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from etdeploy.backends.base import Backend\n"
        "class Lab(Backend):\n"
        "    def findings(self, station):\n"
        "        return station.nothing\n"
        "LAB = Lab(name='lab')\n"
    )
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = lab_f:LAB", lab_f=code)
    found = list(plugged_findings(_station(tmp_path)))
    assert [finding.name for finding in found] == ["backend lab", "backend lab: its findings"]
    assert not lacks(found[1].remedy, f"{tmp_path / 'lab_f.py'}:4:", "plug-in 'lab'")


def test_a_backend_with_other_hooks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = _LAB.replace("Backend(", "type('B', (Backend,), {{'build_key': lambda: 'x'}})(")
    code = code.format("name='lab', lowering='lab_b'")
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = lab_b:LAB", lab_b=code)
    with pytest.raises(UsageError, match=r"etdeploy-lab 1\.2 .*build_key"):
        find_backend("lab")


def test_a_change_of_the_package_makes_another_program(package: Path, tmp_path: Path) -> None:
    spec = export_spec(load_recipe("gemm/mlp").recipe)
    before = program_key(spec, Workspace(tmp_path / "cache"))
    assert before == program_key(spec, Workspace(tmp_path / "cache"))
    (package / "etdeploy_gemm" / "lowering.py").write_text("LOWERING = None\n")
    assert before != program_key(spec, Workspace(tmp_path / "cache"))
    assert code_of(built_in("xnnpack")) is None


def test_the_plan_of_a_plugins_delegate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = (
        "name='lab', delegate_id='LabBackend', component='backend_lab', "
        "switch='EXECUTORCH_BUILD_CADENCE', systems=('linux',), threaded=True"
    )
    _lab(tmp_path, monkeypatch, facts)
    program = make_program(make_method(delegates=("LabBackend",)))
    recipe = load_recipe("portable", ["runtime.provider=source"]).recipe
    plan = make_plan(recipe, program, "linux-x86_64")
    assert plan.blockers == ()
    assert plan.option("EXECUTORCH_BUILD_CADENCE") == "ON"
    assert {"backend_lab", "threadpool"} <= set(plan.component_names)
    elsewhere = make_plan(recipe, program, "android-arm64")
    [blocker] = elsewhere.blockers
    assert not lacks(blocker.why, "LabBackend", "linux only", "android-arm64")


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ("name='other'", "etdeploy-lab 1.2 calls its backend 'other'"),
        ("nam='lab'", "of the package etdeploy-lab 1.2 cannot be loaded: TypeError"),
    ],
)
def test_a_plugin_that_does_not_work_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str, problem: str
) -> None:
    _lab(tmp_path, monkeypatch, facts)
    with pytest.raises(UsageError, match=re.escape(problem)):
        load_recipe("xnnpack", ["export.backend=lab"])
    [finding] = plugged_findings(_station(tmp_path))
    assert finding.state == "optional"
    assert "etdeploy-lab" in str(finding.remedy)


def test_a_plugin_replaces_no_builtin_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lab(tmp_path, monkeypatch, "name='xnnpack', lowering='lab_b'", entry="xnnpack")
    assert find_backend("xnnpack") is built_in("xnnpack")
    assert exporting_names() == tuple(exporting_backends())
    [finding] = plugged_findings(_station(tmp_path))
    assert not lacks(finding.remedy, "etdeploy-lab 1.2", "backend 'xnnpack'")
