"""The QNN SDK on this machine: found, judged, and what it has for a phone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from etdeploy.backends.qnn.facts import (
    ADAPTOR_SDK,
    LEAST_SDK,
    PINNED_VERSION,
    QUALCOMM_SOCS,
    dotted,
    soc_of,
    version_numbers,
)
from etdeploy.backends.qnn.sdk import QnnSdk, find_sdk, for_soc, how_to_get, too_old
from etdeploy.core.errors import Blocker
from tests.support.facts import lacks
from tests.support.qnn_sdk import ARCHS, VERSION, lay_out_sdk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay_out_sdk(tmp_path / "qairt" / VERSION)


def found(root: Path, home: Path | None = None) -> QnnSdk:
    sdk = find_sdk({"QNN_SDK_ROOT": str(root)}, home or root)
    assert isinstance(sdk, QnnSdk)
    return sdk


def missing(environ: dict[str, str], home: Path) -> Blocker:
    sdk = find_sdk(environ, home)
    assert isinstance(sdk, Blocker)
    return sdk


def test_the_variable_leads_to_it(root: Path) -> None:
    sdk = found(root)
    assert (sdk.root, sdk.version, sdk.number) == (root, VERSION, "2.37.0")
    assert sdk.from_ == "QNN_SDK_ROOT"
    assert sdk.htp_archs == ARCHS


@pytest.mark.parametrize("line", ["version: 2.40.1.251119", 'version: "2.40.1.251119"'])
def test_forms_of_the_version(root: Path, line: str) -> None:
    (root / "include/QNN/QnnSdkBuildId.h").unlink()
    (root / "sdk.yaml").write_text(f"{line}\n")
    assert found(root).version == "2.40.1.251119"


def test_without_the_variable_executorchs_newest_download_is_taken(tmp_path: Path) -> None:
    downloads = tmp_path / ".cache/executorch/qnn"
    for version in ("2.37.0.250724175447", "2.42.0.260101000000", "2.9.0.230101000000"):
        lay_out_sdk(downloads / f"sdk-{version}", version)
    (downloads / "sdk-2.50.0.270101000000").mkdir()
    (downloads / "libcxx-14.0.0").mkdir()
    sdk = find_sdk({}, tmp_path)
    assert isinstance(sdk, QnnSdk)
    assert (sdk.number, sdk.from_) == ("2.42.0", "ExecuTorch's downloads")


@pytest.mark.parametrize(
    ("variable", "folder"),
    [("QNN_STAGING_DIR", "staging"), ("XDG_CACHE_HOME", "staging/executorch/qnn")],
)
def test_the_folder_of_downloads_can_be_elsewhere(
    tmp_path: Path, variable: str, folder: str
) -> None:
    lay_out_sdk(tmp_path / folder / f"sdk-{PINNED_VERSION}")
    assert isinstance(find_sdk({variable: str(tmp_path / "staging")}, tmp_path), QnnSdk)


def test_there_is_none(tmp_path: Path) -> None:
    problem = missing({"QNN_SDK_ROOT": ""}, tmp_path)
    assert not lacks(problem.why, "QNN_SDK_ROOT", f"{tmp_path}/.cache/executorch/qnn")
    assert problem.remedy == how_to_get()
    assert "executorch.backends.qualcomm.scripts.download_qnn_sdk" in problem.remedy
    assert f"export QNN_SDK_ROOT=/path/to/qairt/{PINNED_VERSION}" in problem.remedy


V81 = ("SM8850", "SM8845", "SA8797", "SAR2230P", "SW6100")


def test_a_remedy_for_any_soc_names_those_that_need_a_newer_sdk() -> None:
    assert how_to_get().splitlines()[-1] == (
        f"For {', '.join(V81)} take QNN 2.42 or newer from Qualcomm."
    )


@pytest.mark.parametrize("soc", QUALCOMM_SOCS)
def test_a_remedy_for_a_soc_names_the_sdk_that_it_needs(tmp_path: Path, soc: str) -> None:
    found = missing({}, tmp_path)
    remedy = for_soc(found, soc).remedy
    assert ("2.42" in remedy, PINNED_VERSION in remedy) == (soc in V81, soc not in V81)
    assert for_soc(found, None) == found


def test_the_variable_is_the_users_choice(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / ".cache/executorch/qnn" / f"sdk-{VERSION}")
    problem = missing({"QNN_SDK_ROOT": str(tmp_path / "gone")}, tmp_path)
    assert not lacks(problem.why, f"QNN_SDK_ROOT names {tmp_path / 'gone'},", "a folder")


@pytest.mark.parametrize("above", [".", "qairt"])
def test_a_folder_above_the_sdk(root: Path, tmp_path: Path, above: str) -> None:
    problem = missing({"QNN_SDK_ROOT": str(tmp_path / above)}, tmp_path)
    assert f"QNN_SDK_ROOT names {tmp_path / above}," in problem.why
    assert problem.remedy == f"export QNN_SDK_ROOT={root}"


def test_a_download_that_was_cut_off_has_to_go(tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / ".cache/executorch/qnn" / f"sdk-{PINNED_VERSION}")
    shutil.rmtree(root / "lib/aarch64-android")
    problem = missing({}, tmp_path)
    assert problem.remedy == f"rm -r {root}\n{how_to_get()}"


def test_an_sdk_without_a_version(root: Path) -> None:
    (root / "sdk.yaml").write_text("version: unknown\n")
    (root / "include/QNN/QnnSdkBuildId.h").unlink()
    assert "its version" in missing({"QNN_SDK_ROOT": str(root)}, root).why


def test_two_versions_in_one_folder(root: Path) -> None:
    (root / "sdk.yaml").write_text("version: 2.40.0.251030\n")
    why = missing({"QNN_SDK_ROOT": str(root)}, root).why
    assert not lacks(why, str(root), "sdk.yaml says 2.40.0.251030")


def test_versions_compare_by_number() -> None:
    assert version_numbers("v2.9.0.230101") < version_numbers("2.37.0.250724175447_124859")
    with pytest.raises(ValueError, match="not a version"):
        version_numbers("two")


def test_an_sdk_that_is_older_than_the_soc(tmp_path: Path) -> None:
    sdk = found(lay_out_sdk(tmp_path / "old", "2.28.0.241029232508"))
    assert too_old(sdk.version, str(sdk.root), QUALCOMM_SOCS["SM8650"]) is None
    assert too_old(sdk.version, str(sdk.root), QUALCOMM_SOCS["SXR2330P"]) is not None
    problem = too_old(sdk.version, str(sdk.root), QUALCOMM_SOCS["SM8750"])
    assert problem is not None
    assert not lacks(
        problem.why, "SM8750 (HTP V79)", "QNN 2.37 or newer", f"{tmp_path / 'old'} is 2.28.0"
    )


def test_the_guide_has_the_same_versions_and_socs() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "qnn.md").read_text()
    rows = [[c.strip() for c in row.split("|")[1:4]] for row in guide.splitlines() if "| V" in row]
    assert {arch: least for arch, _, least in rows} == {a: dotted(v) for a, v in LEAST_SDK.items()}
    for arch, socs, _ in rows:
        own = {s.name for s in QUALCOMM_SOCS.values() if s.htp_arch == arch}
        assert set(socs.split(", ")) == own
    assert f"export needs {dotted(ADAPTOR_SDK)} or newer" in guide
    assert f"download, {PINNED_VERSION}" in guide
    assert version_numbers(PINNED_VERSION)[:2] == ADAPTOR_SDK


def test_a_number_of_qnn_is_one_soc() -> None:
    assert soc_of(69) is QUALCOMM_SOCS["SM8750"]
    assert soc_of(0) is None
    assert len({soc.qnn_id for soc in QUALCOMM_SOCS.values()}) == len(QUALCOMM_SOCS)
