"""What a QNN program cannot run on is refused before anything is exported or built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.backends.values import Simulated
from etdeploy.bench.bundle import make_bundle
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.tidy import remove_kind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError, CheckError, ExportError
from etdeploy.devices.base import DeviceFacts
from etdeploy.devices.local.device import LocalDevice
from etdeploy.export.spec import NodeObservation
from etdeploy.graph import preflight
from etdeploy.graph.backends import extras_for, program_blockers, simulation_for
from etdeploy.graph.explain import explain
from etdeploy.graph.job import Job, StepName, stage_path
from etdeploy.graph.on_device import bundle_step
from etdeploy.graph.resolve import resolve
from etdeploy.recipe.load import load_recipe
from etdeploy.targets.platforms import find_target
from tests.support.bench_values import make_program_folder, make_runner
from tests.support.program_files import Plan, pte
from tests.support.qnn_sdk import lay_out_aar, lay_out_sdk

# The compile spec of the program that ExecuTorch's checkout has: SM8650, compiled by QNN 2.37.
RECORDED = json.loads((Path(__file__).parents[2] / "data/qnn/compile_specs.json").read_bytes())
SPEC = tuple((k, bytes.fromhex(v)) for k, v in RECORDED["SM8650 mha2sha"].items())
CONTEXT = b"\xcd\xab\x78\x56" + bytes(60) + b"v2.37.0.250724175447_124859\0"
PHONE = "android:R5CX"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Of a recipe with the finished program, which does not say that it is QNN's."""
    monkeypatch.setattr(
        "etdeploy.runner.missing.find_missing", lambda *_: ()
    )  # tools: another test's affair
    plan = Plan(delegates=(("QnnBackend", 0),), compile_specs=SPEC)
    (tmp_path / "model.pte").write_bytes(pte(plan, segments=(CONTEXT,)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {program: model.pte}\n")
    return Job(
        loaded=load_recipe(str(recipe), ()),
        target=find_target("android-arm64"),
        host=find_target("linux-x86_64"),
        workspace=Workspace(tmp_path / "cache"),
        output=tmp_path / "out",
        facts=DeviceFacts(name=PHONE, kind="android", target="android-arm64", soc="SM8650"),
    )


def _sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    root = lay_out_sdk(tmp_path / "sdk", version)
    monkeypatch.setenv("QNN_SDK_ROOT", str(root))


def _on(job: Job, soc: str | None) -> Job:
    facts = job.facts.model_copy(update={"soc": soc}) if job.facts else None
    return Job(job.loaded, job.target, job.host, job.workspace, job.output, facts=facts)


@pytest.mark.parametrize("soc", ["SM8650", None])
def test_a_program_that_fits_is_let_pass(
    job: Job, soc: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sdk(tmp_path, monkeypatch, "2.37.0.250724175447")
    preflight.refuse_early(resolve(_on(job, soc)))
    assert explain(resolve(_on(job, soc))).blockers == ()


def test_a_phone_with_another_soc_is_refused_whatever_else_is_missing(job: Job) -> None:
    with pytest.raises(CheckError, match=r"SM8650.*SM8550"):
        preflight.refuse_early(resolve(_on(job, "SM8550")))
    (blocker,) = explain(resolve(_on(job, "SM8550"))).blockers
    assert blocker.what == "the program's SoC"
    assert "--set export" not in blocker.remedy
    assert "SM8550" in blocker.remedy


@pytest.mark.parametrize("soc", ["SM8650", None])
def test_an_sdk_that_is_older_than_the_programs_is_refused(
    job: Job, soc: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sdk(tmp_path, monkeypatch, "2.31.0.250130151446")
    with pytest.raises(BuildError, match=r"2\.37\.0.* 2\.31\.0"):
        preflight.refuse_early(resolve(_on(job, soc)))
    (blocker,) = explain(resolve(_on(job, soc))).not_installed
    assert blocker.what == "QNN 2.37"


@pytest.mark.parametrize("soc", ["auto", "SM8650"])
def test_an_emulator_is_refused_before_an_sdk_is_asked_for(
    soc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etdeploy.runner.missing.find_missing", lambda *_: ())
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model: {{example: mlp}}\nexport: {{backend: qnn, soc: {soc}}}\n")
    job = Job(
        loaded=load_recipe(str(recipe), ()),
        target=find_target("android-x86_64"),
        host=find_target("linux-x86_64"),
        workspace=Workspace(tmp_path / "cache"),
        output=tmp_path / "out",
    )
    with pytest.raises(ExportError, match="android-x86_64") as told:
        preflight.refuse_early(resolve(job))
    assert "--device android" in (told.value.remedy or "")
    assert [h.what for h in explain(resolve(job)).blockers] == ["Qualcomm's HTP"]


def test_an_archives_libraries_go_along_and_are_unpacked_again_when_they_are_gone(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(job, workspace=Workspace.default())
    aar = lay_out_aar(tmp_path / "qnn-runtime.aar")
    monkeypatch.setenv("QNN_RUNTIME_AAR", str(aar))
    resolved = resolve(job)
    assert resolved.program is not None
    extras = extras_for(job, resolved.program, {})
    provenance = make_program_folder(tmp_path / "program")
    runner = make_runner(tmp_path / "runner")
    inputs_list = job.state / "inputs.txt"
    bundle = make_bundle(runner, tmp_path / "program", provenance, inputs_list, extras)
    assert {f.path for f in bundle.files} >= {
        f"runner/libQnnHtpV75{p}.so" for p in ("Stub", "Skel")
    }
    bundle.save(stage_path(job, StepName.BUNDLE))
    step = bundle_step(resolved)
    assert step.sound is not None
    assert step.sound() is None
    remove_kind(job.workspace, CacheKind.KITS)
    assert "libraries" in str(step.sound())
    extras_for(job, resolved.program, {})
    assert step.sound() is None
    inputs_list.unlink()
    assert "inputs" in str(step.sound())


def test_another_archive_makes_another_bundle(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for archs in (("V75",), ("V75", "V79")):
        monkeypatch.setenv("QNN_RUNTIME_AAR", str(lay_out_aar(tmp_path / "a.aar", archs=archs)))
        found.append(resolve(job).bundle_inputs)
    assert found[0] != found[1]


def _on_this_machine(job: Job, tmp_path: Path) -> Job:
    device, target = LocalDevice(tmp_path / "device"), find_target("linux-x86_64")
    facts = DeviceFacts(name="host", kind="host", target=target.name)
    return replace(job, target=target, device=device, facts=facts)


def test_on_this_machine_a_program_is_simulated(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sdk(tmp_path, monkeypatch, "2.49.40.260810104044")
    resolved = resolve(_on_this_machine(job, tmp_path))
    preflight.refuse_early(resolved)
    assert resolved.program is not None
    assert simulation_for(resolved.job, resolved.program) == Simulated(
        backend="qnn", by="QNN 2.49.40", soc="SM8650"
    )
    shown = explain(resolved)
    assert (shown.blockers, shown.not_installed) == ((), ())
    assert "simulator" in shown.notes[0]


def test_weights_that_the_simulator_cannot_load_are_refused_before_an_export(
    job: Job, tmp_path: Path
) -> None:
    host = replace(
        job,
        loaded=load_recipe("llm-qnn", ("export.soc=SM8650",)),
        target=find_target("linux-x86_64"),
        facts=DeviceFacts(name="host", kind="host", target="linux-x86_64"),
        device=LocalDevice(tmp_path),
    )
    spec = resolve(host).export_spec
    (blocker,) = program_blockers(host, None, spec)
    assert "weight_sharing=false" in blocker.remedy
    assert list(program_blockers(host, None)) == []
    assert spec.generation is not None
    alone = spec.generation.model_copy(update={"methods": "kv"})
    assert not list(program_blockers(host, None, spec.model_copy(update={"generation": alone})))
    observed = {"observation": NodeObservation(nodes=())}
    assert not list(program_blockers(host, None, spec.model_copy(update=observed)))
