"""Every target has its toolchain, or a reason why it has none here and a way to get it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import resource_folder
from etdeploy.plan.requirements import host_blocker, plan_definitions, plan_toolchain
from etdeploy.runner.toolchains import Machine, Toolchain, find_toolchain
from etdeploy.targets.platforms import find_target, host_target

LINUX, ARM_LINUX, MAC = (
    find_target(name) for name in ("linux-x86_64", "linux-aarch64", "macos-arm64")
)
APPLE = ("ios-arm64", "ios-simulator", "macos-arm64")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def android_sdk(home: Path, version: str = "27.2.12479018", newest_api: int = 35) -> Path:
    """An NDK where Android Studio puts it, with the files that are looked at."""
    ndk = home / "Android/Sdk/ndk" / version
    program(ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/clang++")
    (ndk / "build/cmake").mkdir(parents=True)
    (ndk / "build/cmake/android.toolchain.cmake").touch()
    (ndk / "source.properties").write_text(f"Pkg.Desc = Android NDK\nPkg.Revision = {version}\n")
    (ndk / "meta").mkdir()
    (ndk / "meta/platforms.json").write_text(f'{{"min": 21, "max": {newest_api}}}')
    (ndk / "toolchains/llvm/prebuilt/linux-x86_64/AndroidVersion.txt").write_text("18.0.2\n")
    return ndk


def look(
    home: Path, target: str, host: str = "linux-x86_64", api: int = 30, checkout: Path | None = None
) -> Toolchain | Blocker:
    machine = Machine(find_target(host), {}, home, home / "cache")
    return find_toolchain(find_target(target), machine, api, checkout)


def found(result: Toolchain | Blocker) -> Toolchain:
    assert isinstance(result, Toolchain), result
    return result


def refused(result: Toolchain | Blocker) -> Blocker:
    assert isinstance(result, Blocker), result
    return result


def values(toolchain: Toolchain) -> dict[str, str | None]:
    return {d.name: d.value for d in toolchain.definitions}


# What follows from the target alone.


@pytest.mark.parametrize(
    ("target", "host", "file"),
    [
        ("linux-x86_64", "linux-x86_64", None),
        ("linux-aarch64", "linux-x86_64", "linux-aarch64.cmake"),
        ("linux-aarch64-musl", "linux-x86_64", "linux-aarch64-musl.cmake"),
        ("linux-aarch64-musl", "linux-aarch64", "linux-aarch64-musl.cmake"),
        ("android-arm64", "linux-x86_64", "<NDK>/build/cmake/android.toolchain.cmake"),
        ("ios-arm64", "macos-arm64", "<checkout>/third-party/ios-cmake/ios.toolchain.cmake"),
        ("macos-arm64", "macos-arm64", "<checkout>/third-party/ios-cmake/ios.toolchain.cmake"),
    ],
)
def test_the_plan_names_the_toolchain_file(target: str, host: str, file: str | None) -> None:
    toolchain = plan_toolchain(find_target(target), find_target(host))
    assert (toolchain and toolchain.value) == file


def test_android_is_told_abi_and_api_level() -> None:
    for name, abi in (("android-arm64", "arm64-v8a"), ("android-x86_64", "x86_64")):
        told = {d.name: d.value for d in plan_definitions(find_target(name), 31)}
        assert (told["ANDROID_ABI"], told["ANDROID_PLATFORM"]) == (abi, "android-31")


def test_apple_is_told_what_executorch_presets_have() -> None:
    told = {name: [d.value for d in plan_definitions(find_target(name), 30)[:2]] for name in APPLE}
    assert told == {
        "ios-arm64": ["OS64", "17.0"],
        "ios-simulator": ["SIMULATORARM64", "17.0"],
        "macos-arm64": ["MAC_ARM64", "12.0"],
    }


def test_a_64_bit_arm_machine_is_not_taken_for_musl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("sys.platform", "linux")
    assert host_target().name == "linux-aarch64"


@pytest.mark.parametrize("name", APPLE)
def test_apple_needs_a_mac(name: str) -> None:
    blocker = host_blocker(find_target(name), LINUX)
    assert blocker is not None
    assert "on Macs" in blocker.why
    assert host_blocker(find_target(name), MAC) is None


def test_there_is_no_ndk_for_arm_linux() -> None:
    blocker = host_blocker(find_target("android-arm64"), ARM_LINUX)
    assert blocker is not None
    assert "linux-aarch64-musl" in blocker.remedy
    assert host_blocker(find_target("android-arm64"), LINUX) is None


# What this machine has.


def test_android_without_an_ndk(home: Path) -> None:
    blocker = refused(look(home, "android-arm64"))
    assert blocker.what == "Android NDK"
    assert "sdkmanager" in blocker.remedy


def test_android_with_an_ndk(home: Path) -> None:
    ndk = android_sdk(home)
    toolchain = found(look(home, "android-arm64"))
    assert values(toolchain) == {
        "CMAKE_TOOLCHAIN_FILE": str(ndk / "build/cmake/android.toolchain.cmake")
    }
    assert "r27c" in toolchain.definitions[0].reason
    assert toolchain.identity[:2] == ("NDK 27.2.12479018", "clang 18.0.2")
    assert toolchain.compiler.is_file()


def test_an_api_level_that_the_ndk_does_not_know(home: Path) -> None:
    android_sdk(home, newest_api=34)
    blocker = refused(look(home, "android-arm64", api=35))
    assert "up to 34, not 35" in blocker.why
    assert blocker.remedy.endswith("runtime.android_api=34")


def test_an_ndk_of_another_system(home: Path) -> None:
    android_sdk(home)
    blocker = refused(look(home, "android-arm64", host="macos-arm64"))
    assert "macos-arm64" in blocker.why


def test_apple_takes_ios_cmake_of_the_checkout(home: Path) -> None:
    program(home / "bin/clang++")
    checkout = home / "my sources/executorch"
    file = checkout / "third-party/ios-cmake/ios.toolchain.cmake"
    blocker = refused(look(home, "ios-arm64", "macos-arm64", checkout=checkout))
    # git knows nothing of a checkout that was unpacked.
    assert blocker.remedy.endswith(f"/leetal/ios-cmake as '{file.parent}'")
    (checkout / ".git").mkdir(parents=True)
    blocker = refused(look(home, "ios-arm64", "macos-arm64", checkout=checkout))
    assert blocker.remedy.startswith(f"git -C '{checkout}' submodule")
    assert blocker.remedy.endswith("third-party/ios-cmake")
    file.parent.mkdir(parents=True)
    file.touch()
    toolchain = found(look(home, "ios-arm64", "macos-arm64", checkout=checkout))
    assert values(toolchain) == {"CMAKE_TOOLCHAIN_FILE": str(file)}


def test_apple_reports_everything_that_is_missing(home: Path) -> None:
    result = look(home, "ios-simulator", "macos-arm64", checkout=home)
    assert refused(result).what == "ios-cmake, Xcode"
    assert refused(look(home, "ios-simulator", "macos-arm64")).what == "ios-cmake"


def test_the_cross_compiler_in_path(home: Path) -> None:
    assert refused(look(home, "linux-aarch64")).remedy.endswith("g++-aarch64-linux-gnu")
    compiler = program(home / "bin/aarch64-linux-gnu-g++")
    toolchain = found(look(home, "linux-aarch64"))
    assert toolchain.compiler == compiler
    assert values(toolchain) == {
        "CMAKE_TOOLCHAIN_FILE": str(resource_folder("toolchains") / "linux-aarch64.cmake"),
        "CMAKE_CXX_COMPILER": str(compiler),
    }
    before = toolchain.identity
    program(compiler, "echo newer")
    assert found(look(home, "linux-aarch64")).identity != before


# Zig.


@pytest.fixture
def zig(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `ziglang` whose zig prints what it is called with."""
    path = program(home / "site/ziglang/zig", 'echo "$ZIG_GLOBAL_CACHE_DIR" "$@"')
    (path.parent / "__init__.py").touch()
    about = home / "site/ziglang-0.17.1.dist-info/METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: ziglang\nVersion: 0.17.1\n")
    monkeypatch.syspath_prepend(home / "site")
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    return path


def test_musl_without_zig(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    blocker = refused(look(home, "linux-aarch64-musl"))
    assert blocker.remedy.startswith("uv pip install --python ")
    assert blocker.remedy.endswith(" 'ziglang==0.17.*'")


def test_musl_with_a_zig_that_is_too_old(zig: Path, home: Path) -> None:
    about = home / "site/ziglang-0.17.1.dist-info/METADATA"
    about.write_text("Metadata-Version: 2.1\nName: ziglang\nVersion: 0.9.1\n")
    assert "zig 0.9.1 is too old" in refused(look(home, "linux-aarch64-musl")).why


def test_the_programs_are_written_once(zig: Path, home: Path) -> None:
    toolchain = found(look(home, "linux-aarch64-musl"))
    assert toolchain.identity[0] == "zig 0.17.1"
    first = toolchain.compiler
    names = sorted(p.name for p in first.parent.iterdir())
    assert names == [f"aarch64-linux-musl-{n}" for n in ("ar", "clang", "clang++", "ranlib")]
    before = first.stat().st_mtime_ns
    again = found(look(home, "linux-aarch64-musl")).compiler
    assert (again, again.stat().st_mtime_ns) == (first, before)


def test_a_program_starts_zig_with_its_cache(
    zig: Path, home: Path, real_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etdeploy.core.processes import process

    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    compiler = found(look(home, "linux-aarch64-musl")).compiler
    said = process.run(process.Request((str(compiler), "-march=armv8.2-a+fp16", "a b.cpp"))).stdout
    target = "c++ -target aarch64-linux-musl"
    assert said == f"{home / 'cache/cache'} {target} -mcpu=generic+v8_2a+fullfp16 a b.cpp\n"
    archiver = compiler.with_name("aarch64-linux-musl-ar")
    own = {"ZIG_GLOBAL_CACHE_DIR": "/mine"}
    said = process.run(process.Request((str(archiver), "qc", "lib.a"), env=own)).stdout
    assert said == "/mine ar qc lib.a\n"


@pytest.fixture(scope="module")
def translate() -> Callable[[list[str]], list[str]]:
    """The driver's translation. An import would leave compiled files beside the toolchain files."""
    path = resource_folder("toolchains") / "zig_compiler.py"
    return cast("Callable[[list[str]], list[str]]", runpy.run_path(str(path))["zig_arguments"])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("-march=armv8-a", "-mcpu=generic+v8a"),
        ("-march=armv8.2-a+fp16+dotprod", "-mcpu=generic+v8_2a+fullfp16+dotprod"),
        ("-march=armv8.2-a+i8mm+nosimd", "-mcpu=generic+v8_2a+i8mm-neon"),
        ("-march=armv8.2-a+sve+sve2", "-mcpu=generic+v8_2a+sve+sve2"),
        ("-march=armv9-a+sve2-bitperm", "-mcpu=generic+v9a+sve2_bitperm"),
        ("-march=native", "-march=native"),
        ("-mcpu=cortex-a76", "-mcpu=cortex-a76"),
        ("-Wl,--push-state,--whole-archive", "-Wl,--no-whole-archive,--whole-archive"),
        ("-Wl,--pop-state", "-Wl,--no-whole-archive"),
        ("--push-state", "--no-whole-archive"),
        ("--pop-state", "--no-whole-archive"),
        ("-Wl,-z,max-page-size=16384", "-Wl,-z,max-page-size=16384"),
        ("folder with-march=armv8-a.cpp", "folder with-march=armv8-a.cpp"),
    ],
)
def test_options_are_translated_for_zig(
    translate: Callable[[list[str]], list[str]], given: str, wanted: str
) -> None:
    assert translate(["-c", given]) == ["-c", wanted]
