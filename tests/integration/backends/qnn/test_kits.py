"""Qualcomm's real package: found, loaded, and compiling an example."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from etdeploy.backends.qnn.compiler import CompileKit, find_compile_kit
from etdeploy.backends.qnn.facts import BUILD_ID
from etdeploy.backends.qnn.loading import loading_problem
from etdeploy.backends.values import Workstation
from tests.support.cli import Cli, CliResult
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_sdk

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64")
        or find_spec("onnxruntime_qnn") is None,
        reason="needs onnxruntime-qnn, for Linux x86_64 and Python 3.11 or newer",
    ),
]

EXPORT = (
    "export", "--recipe", "qnn", "--set", "model.example=mlp", "--set", "export.soc=SM8650",
)  # fmt: skip


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The tests that export share a cache."""
    return Cli(tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("work"), {})


@pytest.fixture(scope="module")
def exported(cli: Cli) -> CliResult:
    """The first export with the package in this cache."""
    return cli.ok(*EXPORT)


@pytest.fixture
def kit(tmp_path: Path) -> CompileKit:
    found = find_compile_kit(Workstation({}, tmp_path))
    assert isinstance(found, CompileKit), found
    return found


def test_the_version_is_that_in_its_compiler(kit: CompileKit) -> None:
    found = BUILD_ID.search((kit.libraries / "libQnnHtp.so").read_bytes())
    assert found is not None
    assert found[1].decode() == kit.version
    assert kit.license is not None
    assert kit.license.is_file()


def test_it_can_be_loaded(kit: CompileKit) -> None:
    assert loading_problem(kit, {}) is None


def test_it_compiles(cli: Cli, exported: CliResult) -> None:
    assert not lacks(exported.stdout, "for SM8650 (HTP V75),", "by QNN 2.49.40.2608")
    (provenance,) = cli.cache.glob("programs/*/export.json")
    assert json.loads(provenance.read_text())["versions"]["qnn"].startswith("2.49.40.")


def test_the_licence_is_named_at_the_first_export(cli: Cli, exported: CliResult) -> None:
    assert exported.stderr.count("AI Stack licence applies") == 1
    assert "AI Stack licence" not in cli.ok(*EXPORT).stderr


def test_nothing_of_qualcomms_is_copied(cli: Cli, exported: CliResult) -> None:
    files = [
        Path(folder, name)
        for folder, _, names in os.walk(cli.cache / "kits")
        for name in names
        if not name.startswith(".")
    ]
    assert [path.name for path in files] == ["sdk.yaml"]


def test_doctor_says_what_can_be_done(cli: Cli) -> None:
    result = cli("doctor")
    assert not lacks(
        result.stdout, "QNN 2.49.40", "onnxruntime-qnn 2.5.0", "QNN_SDK_ROOT", "QNN_RUNTIME_AAR"
    )


def test_clean_removes_the_folder_that_is_made_again(cli: Cli, exported: CliResult) -> None:
    cli.ok("clean", "kits")
    assert not (cli.cache / "kits").exists()


def test_a_phone_with_older_libraries_is_refused_in_the_plan(
    cli: Cli, exported: CliResult, tmp_path: Path
) -> None:
    """A finished program, and the libraries of the QNN that ExecuTorch downloads."""
    (program,) = cli.cache.glob("programs/*/program.pte")
    recipe = cli.recipe(f"model: {{program: {program}}}\n", "finished.yaml")
    sdk = lay_out_sdk(tmp_path / "sdk")
    result = cli("plan", "--recipe", recipe, "--target", "android-arm64", QNN_SDK_ROOT=str(sdk))
    assert not lacks(result.stdout, "with QNN 2.49.40,", "are of QNN 2.37.0")
