"""OpenVINO: which libraries a run loads, what its environment is, and what a plan says."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from etdeploy.backends import openvino
from etdeploy.backends.openvino import (
    OPENVINO,
    OpenVinoInstallation,
    find_openvino,
    has_vnni,
    installed_in,
    named_library,
)
from etdeploy.backends.schemes import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.backends.values import Destination, ExportRequest, Partitions, Workstation
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.targets.platforms import find_target
from tests.support.facts import lacks
from tests.support.openvino import FILES, lay_out_openvino
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe


class _Package:
    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version

    def locate_file(self, path: str) -> Path:
        return self.root / path


def _find(
    monkeypatch: pytest.MonkeyPatch, root: Path, version: str
) -> OpenVinoInstallation | Blocker:
    monkeypatch.setattr(metadata, "distribution", lambda _: _Package(root, version))
    return find_openvino()


@pytest.mark.parametrize("version", ["2025.1.0", "2025.4.1"])
def test_the_package_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    folder = lay_out_openvino(tmp_path)
    found = _find(monkeypatch, tmp_path, version)
    assert isinstance(found, OpenVinoInstallation)
    assert (found.version, found.library) == (version, folder / "libopenvino_c.so.2541")


@pytest.mark.parametrize("version", ["2024.6.0", "2026.0.0", "2026.4.1"])
def test_another_release_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    lay_out_openvino(tmp_path)
    found = _find(monkeypatch, tmp_path, version)
    assert isinstance(found, Blocker)
    assert not lacks(found.why, f"OpenVINO {version}", ">=2025.1,<2026")
    assert found.remedy.endswith("[openvino]'")


def test_no_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    found = find_openvino()
    assert isinstance(found, Blocker)
    assert "is not installed" in found.why


@pytest.mark.parametrize("name", FILES)
def test_every_library_of_a_run_is_wanted(tmp_path: Path, name: str) -> None:
    folder = lay_out_openvino(tmp_path)
    (folder / name).unlink()
    found = installed_in(folder, "2025.4.1")
    assert isinstance(found, Blocker)
    assert name.startswith(found.why.rpartition(" ")[2])
    command = ["openvino==2025.4.1", "--force-reinstall", "--no-deps"]
    assert found.remedy.split()[-3:] == command


def test_the_users_own_library_is_taken_as_it_is_named(tmp_path: Path) -> None:
    own = tmp_path / "libopenvino_c.so.2520"
    own.touch()
    assert named_library({}) is None
    assert named_library({"OPENVINO_LIB_PATH": ""}) is None
    assert named_library({"OPENVINO_LIB_PATH": str(own)}) == str(own)
    # The system's loader looks for a name alone.
    assert named_library({"OPENVINO_LIB_PATH": "libopenvino_c.so"}) == "libopenvino_c.so"


def test_a_library_that_does_not_exist_is_told_before_the_run(tmp_path: Path) -> None:
    found = named_library({"OPENVINO_LIB_PATH": f"{tmp_path}/libs/libopenvino_c.so"})
    assert isinstance(found, Blocker)
    assert f"OPENVINO_LIB_PATH names {tmp_path}/libs/libopenvino_c.so," in found.why
    assert found.remedy.split()[:2] == ["unset", "OPENVINO_LIB_PATH"]


HERE = Destination(find_target("linux-x86_64"), "host", reports=True, is_here=True)
THERE = Destination(find_target("linux-x86_64"), "ssh:board", reports=True)
IN_32_BITS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
NONE = Blocker("OpenVINO", "OpenVINO is not installed", "pip install openvino")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of an OpenVINO that is found."""
    folder = lay_out_openvino(tmp_path)
    monkeypatch.setattr(openvino, "find_openvino", lambda: installed_in(folder, "2025.4.1"))
    return folder


def station(**environ: str) -> Workstation:
    return Workstation(environ, Path("/home/me"))


@pytest.mark.parametrize(
    ("quantization", "environment"),
    [("none", IN_32_BITS), ("fp16", {}), ("int8_static", {}), (None, {})],
)
def test_only_a_program_in_32_bit_floats_hides_the_shorter_ones(
    installed: Path, quantization: str | None, environment: dict[str, str]
) -> None:
    extras = OPENVINO.extras(station(), HERE, Partitions(quantization=quantization))
    assert not extras.files
    library = {"OPENVINO_LIB_PATH": str(installed / "libopenvino_c.so.2541")}
    assert extras.environment == library | environment


def test_the_users_own_library_is_loaded_instead(installed: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.so"
    own.touch()
    given = station(OPENVINO_LIB_PATH=str(own))
    extras = OPENVINO.extras(given, HERE, Partitions(quantization="none"))
    assert extras.environment == {"OPENVINO_LIB_PATH": str(own), **IN_32_BITS}
    assert not list(OPENVINO.bundle_blockers(given, HERE, Partitions()))
    assert OPENVINO.bundle_inputs(given) == {
        "OpenVINO": f"2025.4.1, {installed / 'libopenvino_c.so.2541'}",
        "OPENVINO_LIB_PATH": str(own),
    }


@pytest.mark.parametrize("finished", [False, True])
def test_devices_that_are_not_this_machine_are_refused(finished: bool) -> None:
    partitions = Partitions(finished=finished)
    [blocker] = OPENVINO.program_blockers(partitions, THERE)
    assert "ssh:board" in blocker.why
    assert blocker.remedy.endswith(OTHER_PROGRAM if finished else OTHER_BACKEND)
    assert finished or OPENVINO.device_blocker("auto", THERE) == blocker
    # A target alone may be built for.
    for where in (HERE, Destination(HERE.target, "linux-x86_64")):
        assert not list(OPENVINO.program_blockers(partitions, where))
        assert OPENVINO.device_blocker("auto", where) is None


def test_a_library_that_does_not_exist_is_told_before_the_export(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENVINO_LIB_PATH", "/nowhere/libopenvino_c.so")
    blocker = OPENVINO.device_blocker("auto", HERE)
    assert blocker is not None
    assert not lacks(blocker.why, "OPENVINO_LIB_PATH", "/nowhere/libopenvino_c.so")
    monkeypatch.delenv("OPENVINO_LIB_PATH")
    assert OPENVINO.device_blocker("auto", HERE) is None


def test_nothing_is_deployed_without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_openvino", lambda: NONE)
    assert list(OPENVINO.bundle_blockers(station(), HERE, Partitions())) == [NONE]
    [finding] = OPENVINO.findings(station())
    assert (finding.state, finding.remedy) == ("optional", f"{NONE.why}\n{NONE.remedy}")
    with pytest.raises(BuildError, match="not installed"):
        OPENVINO.extras(station(), HERE, Partitions())


@pytest.mark.parametrize("provider", ["auto", "wheel", "source"])
@pytest.mark.parametrize("target", ["android-arm64", "android-x86_64", "linux-aarch64"])
def test_other_targets_are_refused(target: str, provider: str) -> None:
    recipe = make_recipe(export={"backend": "openvino"}, runtime={"provider": provider})
    whys = [blocker.why for blocker in make_plan(recipe, None, target).blockers]
    own = [why for why in whys if why.startswith("OpenvinoBackend runs on")]
    assert [lacks(why, "linux on x86_64", f"target is {target}") for why in own] == [[]]


def test_the_plan_says_that_threads_do_not_reach_openvino() -> None:
    program = make_program(make_method(delegates=("OpenvinoBackend",)))
    limited = make_recipe(runtime={"threads": 3})
    [note] = make_plan(limited, program, "linux-x86_64").notes
    assert not lacks(note, "runtime.threads is 3,", "OpenVINO")
    assert not make_plan(make_recipe(), program, "linux-x86_64").notes
    others = make_program(make_method(delegates=("XnnpackBackend",)))
    assert not make_plan(limited, others, "linux-x86_64").notes


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("OpenVINO: failed to import model for device 'CPU' (status=-1)", "for CPU:"),
        (
            "OpenVINO: failed to resolve symbol 'ov_core_create': undefined symbol",
            "no ov_core_create",
        ),
    ],
)
def test_what_the_delegate_logs_is_explained(line: str, fact: str) -> None:
    cause = OPENVINO.failure(f"E 00:00:00.01 executorch:OpenvinoBackend.cpp:160] {line}", "host")
    assert cause is not None
    assert fact in cause.cause
    assert cause.remedy


@pytest.mark.parametrize("flag", ["avx512_vnni", "avx_vnni", "amx_int8"])
def test_a_processor_that_adds_products_of_bytes(flag: str) -> None:
    assert has_vnni(f"flags\t\t: fpu avx2 {flag} sse")
    assert not has_vnni("flags\t\t: fpu avx2 avx512f not_" + flag)


@pytest.mark.parametrize(("vnni", "value"), [(True, "yes"), (False, "no")])
def test_the_processor_is_in_the_key_of_quantized_programs_alone(
    monkeypatch: pytest.MonkeyPatch, vnni: bool, value: str
) -> None:
    monkeypatch.setattr(openvino, "has_vnni", lambda: vnni)
    assert OPENVINO.versions(ExportRequest("int8_static"), station()) == {"VNNI": value}
    assert OPENVINO.versions(ExportRequest("fp16"), station()) == {}


@pytest.mark.parametrize(
    ("vnni", "partitions", "notes"),
    [
        (False, Partitions(finished=True), 1),
        (True, Partitions(finished=True), 0),
        (False, Partitions(versions={"VNNI": "yes"}), 1),
        (False, Partitions(versions={"VNNI": "no"}), 0),
    ],
)
def test_programs_for_vnni_have_a_note_on_a_processor_without(
    monkeypatch: pytest.MonkeyPatch, vnni: bool, partitions: Partitions, notes: int
) -> None:
    monkeypatch.setattr(openvino, "has_vnni", lambda: vnni)
    found = list(OPENVINO.bundle_notes(station(), HERE, partitions))
    assert ["VNNI" in note for note in found] == [True] * notes
