"""Phone, program and SDK have to fit together before anything is exported or pushed."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.qnn.backend import QNN
from etdeploy.backends.qnn.deploy import DeployKit, find_deploy_kit
from etdeploy.backends.qnn.phone import (
    compiled_version,
    kit_blockers,
    kit_note,
    program_blockers,
    qnn_extras,
    soc_blocker,
)
from etdeploy.backends.qnn.sdk import how_to_get
from etdeploy.backends.values import CompiledFor, Destination, Partitions, Workstation
from etdeploy.bench.bundle import make_bundle
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.hashing import sha256_file
from etdeploy.devices.bundles import check_bundle, environment
from etdeploy.targets.platforms import find_target
from tests.support.bench_values import make_program_folder, make_runner
from tests.support.facts import lacks
from tests.support.qnn_sdk import VERSION, lay_out_sdk

PHONE = "android:R5CX"
V75 = CompiledFor(soc_id=57, soc="SM8650", htp_arch="V75")
NONE = Blocker("the QNN SDK", "QNN_SDK_ROOT is not set", "export QNN_SDK_ROOT=/sdk")


@pytest.fixture
def station(tmp_path: Path) -> Workstation:
    return Workstation({"QNN_SDK_ROOT": str(lay_out_sdk(tmp_path / "sdk"))}, tmp_path)


@pytest.fixture
def kit(station: Workstation) -> DeployKit:
    found = find_deploy_kit(station)
    assert isinstance(found, DeployKit)
    return found


@pytest.mark.parametrize("wanted", ["SM8750", "sm8750", "SM8750-AC", "auto", None])
@pytest.mark.parametrize("reported", ["SM8750", "SM8750P"])
def test_the_recipes_soc_is_the_phones(wanted: str | None, reported: str) -> None:
    assert soc_blocker(wanted, PHONE, reported) is None


def test_a_recipe_for_another_soc_is_refused_with_both_names() -> None:
    blocker = soc_blocker("SM8650", PHONE, "SM8750P")
    assert blocker is not None
    assert not lacks(blocker.why, "export.soc is SM8650,", "android:R5CX has SM8750:")
    assert not lacks(blocker.remedy, "--set export.soc=SM8750 ", "--set export.soc=auto")


@pytest.mark.parametrize("wanted", ["auto", "SM8650"])
@pytest.mark.parametrize("reported", ["Tensor G4", "kona", "Exynos 2400"])
def test_a_phone_that_is_not_qualcomms_is_told_what_it_says(wanted: str, reported: str) -> None:
    blocker = soc_blocker(wanted, PHONE, reported)
    assert blocker is not None
    assert not lacks(blocker.why, "android:R5CX", f"SoC {reported},")
    assert blocker.remedy.endswith("--set export.backend=xnnpack")


def test_a_phone_that_says_nothing_needs_a_soc_in_the_recipe() -> None:
    assert soc_blocker("SM8650", PHONE, None) is None
    blocker = soc_blocker("auto", PHONE, None)
    assert blocker is not None
    assert "android:R5CX does not" in blocker.why
    assert "--set export.soc=SM8650" in blocker.remedy


def test_a_program_for_another_soc_is_refused() -> None:
    assert not list(program_blockers((V75,), PHONE, "SM8650"))
    assert not list(program_blockers((V75,), PHONE, None))
    (blocker,) = program_blockers((V75, V75), PHONE, "SM8550-AC")
    assert not lacks(blocker.why, "SM8650 (HTP V75),", "android:R5CX has SM8550 (HTP V73):")
    assert blocker.remedy.endswith("SM8650: etdeploy devices")
    assert not lacks(blocker.remedy, "--set export.backend=qnn", "--set export.soc=SM8550\n")
    (blocker,) = program_blockers((V75,), PHONE, "SM8550-AC", finished=True)
    assert blocker.remedy.endswith("SM8650: etdeploy devices")
    assert not lacks(blocker.remedy, "for SM8550,", "model.program")
    assert "--set" not in blocker.remedy


def test_a_program_for_a_soc_without_a_name() -> None:
    (blocker,) = program_blockers((CompiledFor(soc_id=999),), PHONE, "SM8550")
    assert "SoC number 999," in blocker.why


def test_what_is_wrong_with_an_sdk(kit: DeployKit) -> None:
    (absent,) = kit_blockers(NONE, "SM8750")
    assert (absent.what, absent.why, absent.remedy) == (NONE.what, NONE.why, NONE.remedy)
    (old,) = kit_blockers(kit, "SM8850")
    assert not lacks(old.why, "SM8850 (HTP V81)", "QNN 2.42 or newer")
    (unknown,) = kit_blockers(kit, "SM9999")
    assert ": SM8350, " in unknown.remedy


@pytest.mark.parametrize(
    ("compiled_with", "part"),
    [
        (VERSION, None),
        ("2.36.1.250601000000", None),
        ("2.37.40.250801000000", "QNN 2.37.40 compiled"),
        (None, "does not say which QNN"),
    ],
)
def test_what_is_not_certain_is_a_note(
    kit: DeployKit, compiled_with: str | None, part: str | None
) -> None:
    assert not list(kit_blockers(kit, "SM8750", compiled_with))
    note = kit_note(kit, compiled_with)
    assert (note is None) == (part is None)
    assert (part or "") in (note or "")


def test_no_remedy_names_an_sdk_that_does_not_compile(tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "sdk", "2.48.40.260702151143", ("V75",))
    kit = find_deploy_kit(Workstation({"QNN_SDK_ROOT": str(root)}, tmp_path))
    (blocker,) = kit_blockers(kit, "SM8650", "2.49.40.260810104044")
    assert "export QNN_SDK_ROOT=/path/to/its/SDK" not in blocker.remedy
    older = lay_out_sdk(tmp_path / "old", VERSION)
    (blocker,) = kit_blockers(
        find_deploy_kit(Workstation({"QNN_SDK_ROOT": str(older)}, tmp_path)),
        "SM8650",
        "2.49.40.260810104044",
    )
    assert "export QNN_SDK_ROOT=/path/to/its/SDK" in blocker.remedy


def test_the_version_that_compiled_a_program() -> None:
    old, new = (CompiledFor(soc_id=57, sdk_version=v) for v in ("2.9.0.230101000000", VERSION))
    shown = (old, new, V75)
    assert compiled_version(shown, None) == VERSION
    assert compiled_version(shown, "2.40.0.1") == "2.40.0.1"
    assert compiled_version((V75,), None) is None


def test_the_bundle_has_qualcomms_libraries_beside_the_runner(
    kit: DeployKit, tmp_path: Path
) -> None:
    provenance = make_program_folder(tmp_path / "program")
    runner = make_runner(tmp_path / "runner")
    bundle = make_bundle(
        runner,
        tmp_path / "program",
        provenance,
        tmp_path / "inputs.txt",
        qnn_extras(kit, "SM8750", VERSION),
    )
    check_bundle(bundle)
    by_path = {file.path: file for file in bundle.files}
    assert [p for p in by_path if "Qnn" in p] == [
        "runner/libQnnHtp.so",
        "runner/libQnnHtpV79Stub.so",
        "runner/libQnnHtpPrepare.so",
        "runner/libQnnSystem.so",
        "runner/libQnnHtpV79Skel.so",
    ]
    skel = kit.place / "lib/hexagon-v79/unsigned/libQnnHtpV79Skel.so"
    entry = by_path["runner/libQnnHtpV79Skel.so"]
    assert (entry.source, entry.sha256) == (str(skel), sha256_file(skel))
    assert environment(bundle, "/data/local/tmp/b", "/data/local/tmp/r") == {
        "LD_LIBRARY_PATH": "/data/local/tmp/b/runner",
        "ADSP_LIBRARY_PATH": "/data/local/tmp/b/runner",
    }


def test_no_library_is_taken_from_an_sdk_that_does_not_fit(kit: DeployKit) -> None:
    with pytest.raises(BuildError, match=r"needs QNN 2\.42") as caught:
        qnn_extras(kit, "SM8850")
    assert caught.value.remedy == how_to_get("2.42")
    with pytest.raises(BuildError, match=NONE.why):
        qnn_extras(NONE, "SM8750")


@pytest.mark.parametrize(
    ("soc", "sdk", "arch"), [("SM8650", "2.37.0", "V75"), ("SW6100", "2.42", "V81")]
)
def test_what_a_phone_lacks_is_named_before_the_export(
    tmp_path: Path, soc: str, sdk: str, arch: str
) -> None:
    where = Destination(find_target("android-arm64"), "android", reports=False, soc=soc)
    (found,) = QNN.bundle_blockers(Workstation({}, tmp_path), where, Partitions())
    names = (f"libQnnHtp{arch}Stub.so", "libQnnHtpPrepare.so", f"libQnnHtp{arch}Skel.so")
    assert not lacks(found.why, f"{soc} needs libQnnHtp.so", *names)
    assert f"/path/to/qairt/{sdk}" in found.remedy
    assert ("2.37" in found.remedy) == (sdk == "2.37.0")


@pytest.mark.usefixtures("installed")
def test_an_aar_has_to_be_as_new_as_the_compiler(tmp_path: Path) -> None:
    where = Destination(find_target("android-arm64"), "android", reports=False, soc="SM8850")
    (found,) = QNN.bundle_blockers(Workstation({}, tmp_path), where, Partitions())
    assert "qnn-runtime 2.49 or newer" in found.remedy
    compiled = Partitions((V75.model_copy(update={"sdk_version": VERSION}),), finished=True)
    (older,) = QNN.bundle_blockers(Workstation({}, tmp_path), where, compiled)
    assert "qnn-runtime 2.37 or newer" in older.remedy


def test_the_sdk_is_always_given_to_cmake(station: Workstation, tmp_path: Path) -> None:
    assert QNN.definitions(station, {}) == {"QNN_SDK_ROOT": station.environ["QNN_SDK_ROOT"]}
    assert QNN.definitions(Workstation({}, tmp_path), {}) == {"QNN_SDK_ROOT": ""}
