"""Kinds of devices of other packages: the example of docs/devices.md, as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import etdeploy.bench.measure as measurement_module
from etdeploy.bench.assemble import Revision
from etdeploy.bench.measure import PreparedMeasurement, measure
from etdeploy.bench.records.stored import load_run
from etdeploy.cache.workspace import Workspace
from etdeploy.cli.main import cli
from etdeploy.cli.options import complete_device
from etdeploy.core.errors import UsageError
from etdeploy.devices.base import Device, lock_name
from etdeploy.devices.kinds import Recovery
from etdeploy.devices.registry import (
    GROUP,
    device_forms,
    list_devices,
    open_device,
    plugged_in,
    recover_device,
)
from etdeploy.graph.jobs import open_job
from etdeploy.program.model import Method, Program
from etdeploy.recipe.load import LoadedRecipe, load_recipe
from etdeploy.targets.platforms import host_target
from tests.support.adb_fakes import fake_server
from tests.support.bench_values import make_program_folder, make_recipe, make_runner
from tests.support.bundles import make_bundle
from tests.support.plugins import install_plugin

DOCS = Path(__file__).parents[3] / "docs" / "devices.md"
EXPECTED = bytes(range(32))

# What a runner writes, for any arguments of a runner.
RUNNER = """#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in --results) results=$2;; --outputs) outputs=$2;; --etdump) echo trace >$2;; esac
  shift 2
done
[ -z "$outputs" ] || { mkdir -p $outputs && cp "$(dirname "$0")/expected" $outputs/0.bin; }
cp "$(dirname "$0")/results" $results
"""
RESULTS = {
    "schema_version": 1,
    "executorch_version": "1.5.1",
    "method": "forward",
    "started_unix_s": 1_700_000_000,
    "threads": 2,
    "warmup": 1,
    "verify_ms": 0.25,
    "load_program_ms": 0.5,
    "load_method_ms": 1.5,
    "rss_after_load_bytes": 5_000_000,
    "first_inference_ms": 3.0,
    "outputs": [{"kind": "Tensor", "dtype": "float32", "shape": [2, 4], "path": "0.bin"}],
    "peak_rss_bytes": 6_000_000,
    "samples_ms": [1.0, 1.1, 1.2],
}


@pytest.fixture
def attic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, installed as a package; the folder that is its device."""
    [code] = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    [entry] = re.findall(r'^attic = "(.*)"$', DOCS.read_text(), re.MULTILINE)
    assert f'"{GROUP}"' in DOCS.read_text()
    install_plugin(tmp_path / "site", monkeypatch, GROUP, f"attic = {entry}", etdeploy_attic=code)
    folder = tmp_path / "the attic"
    folder.mkdir()
    return folder


def test_a_device_of_another_package_goes_all_the_way_to_a_record(
    attic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_module, "revision_of", lambda _: Revision("c0ffee", True))
    device: Device = open_device(f"attic:{attic}")
    assert device.facts().target == host_target().name
    assert lock_name(device) == "host"
    files = {}
    for name, content in (
        ("fate", RUNNER.encode()), ("results", json.dumps(RESULTS).encode()), ("expected", EXPECTED)
    ):  # fmt: skip
        files[name] = tmp_path / name
        files[name].write_bytes(content)
    bundle = make_bundle(files)
    assert (device.push(bundle).pushed_files, device.push(bundle).kept_files) == (3, 3)
    make_program_folder(tmp_path / "program")
    path = tmp_path / "recipe.yaml"
    prepared = PreparedMeasurement(
        bundle,
        LoadedRecipe("mlp", path, make_recipe(), ((path, "ef" * 32),)),
        tmp_path / "program",
        program(),
        make_runner(tmp_path / "runner", "ld.so"),
    )
    run = measure(device, prepared, tmp_path / "out")
    record = load_run(run.record_path).record
    assert (record.device.facts.name, record.device.facts.kind) == (f"attic:{attic}", "attic")
    assert [check.within_tolerance for check in record.inference.outputs] == [True]
    assert not list((attic / "runs").iterdir())
    assert device.clean()["bundles"] > 0
    device.close()
    # All that it touched is its own folder.
    assert not list(attic.iterdir())


def program() -> Program:
    method = Method(
        name="forward", inputs=(), outputs=(), operators=(), delegates=(), instructions=0,
        planned_memory_bytes=0,
    )  # fmt: skip
    return Program(
        sha256="ab" * 32, size_bytes=7, schema_version=0, constant_bytes=0, methods=(method,)
    )


def test_it_is_named_wherever_devices_are_named(attic: Path) -> None:
    assert "attic[:...]" in device_forms()
    assert complete_device(None, None, "at") == ["attic"]  # type: ignore[arg-type]
    assert "attic[:...]" in CliRunner().invoke(cli, ["run", "--help"]).output.replace("\n", "")
    with pytest.raises(UsageError, match="Did you mean attic:x"):
        open_device("atic:x")


_KIND = "from etdeploy.devices.kinds import DeviceKind\n"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("import nix1", "pip uninstall etdeploy-lab"),
        (
            f"{_KIND}def scan(_):\n    return 1 / 0\n"
            "KIND = DeviceKind('lab', ('lab',), scan, scan)",
            "in its hook scan: ZeroDivisionError",
        ),
        (
            f"{_KIND}KIND = DeviceKind('lab', ('lab',), print, lambda _: 7)",
            "TypeError: returned 7, not list",
        ),
    ],
)
def test_a_plugin_that_does_not_work_hides_no_other_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, remedy: str
) -> None:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    install_plugin(tmp_path / "site", monkeypatch, GROUP, "lab = lab_x:KIND", lab_x=code)
    listed = {d.name: d for d in list_devices(Workspace(tmp_path / "cache"))}
    assert (listed["host"].status, listed["lab"].status) == ("device", "error")
    assert "etdeploy-lab 1.2" in str(listed["lab"].remedy)
    assert re.search(remedy, str(listed["lab"].remedy))


def test_a_device_that_lacks_a_hook_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"{_KIND}KIND = DeviceKind('lab', ('lab',), lambda *_: 7, list)"
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = lab_x:KIND", lab_x=code)
    with pytest.raises(UsageError, match="has no hook facts"):
        open_device("lab")


def test_a_device_that_starts_no_processes_is_refused_before_anything_is_made(
    attic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import etdeploy_attic  # type: ignore[import-not-found]

    monkeypatch.setattr(
        etdeploy_attic.Attic,
        "capabilities",
        etdeploy_attic.Attic.capabilities.model_copy(update={"launches": ("app",)}),
    )
    with (
        pytest.raises(UsageError, match=r"attic.*\n.*--as app"),
        open_job(load_recipe("xnnpack", ()), tmp_path / "out", f"attic:{attic}"),
    ):
        pytest.fail("the job was opened")


def test_what_is_plugged_in_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with fake_server("A1 device\nB2 unauthorized\n", requests=asked) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        listed = {each.name: each for each in plugged_in()}
    assert asked == ["host:devices-l"]
    assert listed["host"].status == listed["android:A1"].status == "device"
    assert listed["android:B2"].status == "unauthorized"
    assert listed["android:B2"].remedy
    assert "qemu" in listed


def test_only_some_kinds_can_be_recovered() -> None:
    for name in ("host", "ssh:pi@board", "ios:1"):
        assert not recover_device(name, Recovery.REBOOT, lambda _: None)
    with pytest.raises(UsageError, match="there is no device"):
        recover_device("nothing", Recovery.REBOOT, lambda _: None)
