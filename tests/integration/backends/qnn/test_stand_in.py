"""A bundle with stand-ins of Qualcomm's libraries on a real adbd: which file each comes from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from etdeploy.backends.registry import backend_named
from etdeploy.backends.values import CompiledFor, Destination, Partitions, Workstation
from etdeploy.bench.bundle import make_bundle
from etdeploy.devices.base import Bundle, ProcessLaunch
from etdeploy.devices.registry import open_device
from etdeploy.targets.platforms import find_target
from tests.support.adbd import AndroidRoot, android_x86_64, make_android, no_adb_server
from tests.support.bench_values import make_program_folder, make_runner
from tests.support.qnn_sdk import VERSION, lay_out_sdk

pytestmark = pytest.mark.integration

__all__ = ["android_x86_64", "make_android", "no_adb_server"]

SOURCE = Path(__file__).parents[3] / "data/qnn/stand_in.c"
LOADER = "ld-linux-x86-64.so.2"
BACKEND = "libqnn_executorch_backend.so"
SKEL = "libQnnHtpV79Skel.so"
V79 = CompiledFor(soc_id=69, soc="SM8750", htp_arch="V79", sdk_version=VERSION)
# Each opens the next one by its bare name, as the real ones do.
CHAIN = {
    BACKEND: "libQnnHtp.so",
    "libQnnHtp.so": "libQnnHtpV79Stub.so",
    "libQnnHtpV79Stub.so": "libQnnSystem.so",
    "libQnnSystem.so": None,
}


def _library(path: Path, loads: str | None, name: str | None = None) -> None:
    path.unlink(missing_ok=True)
    options = [f'-DNAME="{name or path.name}"', *([f'-DLOADS="{loads}"'] if loads else [])]
    if "Stub" in path.name:
        options.append(f'-DSKEL="{SKEL}"')
    options.append(f"-Wl,-soname,{path.name}")
    subprocess.run(["gcc", "-shared", "-fPIC", *options, SOURCE, "-o", path], check=True)


def _of_compiler(name: str) -> Path:
    argv = ["gcc", f"-print-file-name={name}"]
    return Path(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """As for a QNN program on a phone with the V79; its runner ends once its backend is loaded."""
    sdk = lay_out_sdk(tmp_path / "sdk")
    for name, loads in CHAIN.items():
        if name != BACKEND:
            _library(sdk / "lib/aarch64-android" / name, loads)
    runner = make_runner(tmp_path / "runner")
    folder = Path(runner.path)
    _library(folder / BACKEND, CHAIN[BACKEND])
    (folder / "main.c").write_text(
        "int etdeploy_stand_in(void);\nint main(void) { return etdeploy_stand_in(); }\n"
    )
    (folder / runner.executable).unlink()
    linked: list[str | Path] = [folder / "main.c", folder / BACKEND, "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["gcc", *linked, "-o", folder / runner.executable], check=True)
    # The test device has no C library of Linux: the runner brings that, and its loader.
    shutil.copy(_of_compiler(LOADER), folder)
    shutil.copy(_of_compiler("libc.so.6"), folder)
    runner = runner.model_copy(
        update={"loader": LOADER, "libraries": (BACKEND, "libc.so.6"), "backends": ("QnnBackend",)}
    )
    station = Workstation({"QNN_SDK_ROOT": str(sdk)}, tmp_path)
    where = Destination(find_target("android-arm64"), "android", reports=True, soc="SM8750")
    extras = backend_named("qnn").extras(station, where, Partitions(compiled=(V79,)))
    program = tmp_path / "program"
    made = make_bundle(
        runner, program, make_program_folder(program), tmp_path / "inputs.txt", extras
    )
    # Without --library-path, so that the variables alone say where libraries are, as on a phone.
    launch = ProcessLaunch(
        argv=(f"runner/{LOADER}", f"{{bundle}}/runner/{runner.executable}"),
        environment=made.process.environment,
    )
    return made.model_copy(update={"launch": launch})


def _printed(android: AndroidRoot, bundle: Bundle) -> list[str]:
    device = open_device(android.spec)
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        outcome = run.run([], 60)
    device.close()
    assert outcome.exit_code == 0, outcome.stdout + outcome.stderr
    return outcome.stdout.splitlines()


def test_every_library_comes_from_the_runners_folder_and_the_skel_is_beside_it(
    android_x86_64: AndroidRoot, no_adb_server: None, bundle: Bundle
) -> None:
    lines = _printed(android_x86_64, bundle)
    places = dict(line.split(" from ") for line in lines if " from " in line)
    assert list(places) == list(CHAIN)
    (folder,) = {str(Path(place).parent) for place in places.values()}
    assert folder.endswith("/runner")
    # One folder, of which the HTP's loader needs the whole name: it does not split at colons.
    assert f"skel {folder}/{SKEL} found" in lines
    assert ":" not in bundle.process.environment["ADSP_LIBRARY_PATH"]


def test_what_was_pushed_comes_before_the_phones_own_libraries(
    android_x86_64: AndroidRoot, no_adb_server: None, bundle: Bundle, tmp_path: Path
) -> None:
    own = tmp_path / "libQnnHtp.so"
    _library(own, None, name="the phone's own")
    for folder in ("lib", "usr/lib", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"):
        there = android_x86_64.path(folder)
        there.mkdir(parents=True, exist_ok=True)
        shutil.copy(own, there / own.name)
    assert not [line for line in _printed(android_x86_64, bundle) if "own" in line]
    # The same without the variable: what it is for.
    environment = {k: v for k, v in bundle.process.environment.items() if k != "LD_LIBRARY_PATH"}
    libc = {"LD_LIBRARY_PATH": "{bundle}/libc"}
    files = [
        file.model_copy(update={"path": f"libc/{Path(file.path).name}"})
        for file in bundle.files
        if Path(file.path).name in ("libc.so.6", BACKEND)
    ]
    alone = bundle.model_copy(
        update={
            "files": (*bundle.files, *files),
            "launch": bundle.process.model_copy(update={"environment": environment | libc}),
        }
    )
    assert any(line.startswith("the phone's own from ") for line in _printed(android_x86_64, alone))
