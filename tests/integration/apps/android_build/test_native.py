"""ExecuTorch built for an app, from a stand-in for the checkout and with this machine's compiler.

There is no NDK here: what it alone decides, the C library and the processor, stays untried.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from etdeploy.apps.android import native
from etdeploy.apps.android.app import NATIVE
from etdeploy.apps.android.native import build_api, build_library, library_definitions
from etdeploy.apps.android.tools import Tools, find_tools, require_tools
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError
from etdeploy.graph.app_plan import library_plan
from etdeploy.plan.derive import Available
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import Checkout, examine, read_options
from etdeploy.runner.build_tree import BuildTree
from etdeploy.runner.toolchains import BuildTools, Toolchain
from etdeploy.targets.platforms import host_target
from tests.support.apk_sdk import API, SdkUnavailable, kept_sdk, station
from tests.support.runtime_values import make_recipe
from tests.support.stand_in import PROGRAM, copy_stand_in

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        host_target().name != "linux-x86_64", reason="the stand-in has the wheel's ELF libraries"
    ),
]

ABI = "x86_64"
_JNI = """\
#include <fbjni/fbjni.h>
#include <executorch/runtime/kernel/operator_registry.h>
extern "C" int JNI_OnLoad() {
  return fbjni_stand_in() + (executorch::runtime::get_registered_kernels().empty() ? 1 : 0);
}
extern "C" int hidden() { return 1; }
"""
# Loads the app's library, and calls what is in it.
_LOAD = """
import ctypes, sys
fbjni, runtime, library, *others = sys.argv[1:]
for path in (fbjni, runtime):
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
app = ctypes.CDLL(library)
print(app.JNI_OnLoad(), "shown" if hasattr(app, "hidden") else "hidden")
"""
_SCRIPT = "{ global: JNI_OnLoad; Java_*; local: *; };\n"
# What the real checkout and Android's C library have, and the stand-in has not.
_TARGETS = """
if(EXECUTORCH_BUILD_EXTENSION_RUNNER_UTIL)
  standin_library(extension_runner_util sources/plain.cpp "")
endif()
add_library(log INTERFACE)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = copy_stand_in(tmp_path / "src/executorch")
    jni = folder / "extension/android/jni"
    jni.mkdir(parents=True)
    (jni / "jni_layer.cpp").write_text(_JNI)
    for name in ("jni_layer_runtime.cpp", "jni_helper.cpp", "log.cpp"):
        (jni / name).write_text("static int nothing [[maybe_unused]] = 1;\n")
    (jni / "version_script.txt").write_text(_SCRIPT)
    with (folder / "CMakeLists.txt").open("a") as file:
        file.write(_TARGETS)
    return examine(folder, "recipe")


@pytest.fixture
def fbjni(tmp_path: Path) -> Path:
    """An AAR with a header and a library for this machine."""
    source, library = tmp_path / "f.cpp", tmp_path / "libfbjni.so"
    source.write_text('extern "C" int fbjni_stand_in() { return 40; }\n')
    command = ["c++", "-shared", "-fPIC", "-Wl,-soname,libfbjni.so", "-o"]
    subprocess.run([*command, str(library), str(source)], check=True)
    aar = tmp_path / "fbjni.aar"
    with zipfile.ZipFile(aar, "w") as archive:
        header = "prefab/modules/fbjni/include/fbjni/fbjni.h"
        archive.writestr(header, 'extern "C" int fbjni_stand_in();\n')
        archive.write(library, f"jni/{ABI}/libfbjni.so")
    return aar


@pytest.fixture
def own_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Path(str(shutil.which("c++")))
    here = Toolchain((), compiler, ("here",))
    monkeypatch.setattr(native, "require_toolchain", lambda *_: here)


def plan(checkout: Checkout, **runtime: Any) -> RuntimePlan:
    recipe = make_recipe(runtime={"selective": False, **runtime})
    available = Available("1.4.1", frozenset(), read_options(checkout.folder))
    return library_plan(recipe, PROGRAM, ABI, available)


@pytest.mark.usefixtures("own_compiler")
def test_the_library_has_its_components_and_hides_the_rest(
    checkout: Checkout, fbjni: Path, tmp_path: Path
) -> None:
    project, log = tmp_path / "project", tmp_path / "log"
    workspace = Workspace(tmp_path / "cache")
    chosen = plan(checkout)
    files = build_library(chosen, checkout, fbjni, workspace, project, log=log)
    folder = project / NATIVE / ABI
    assert files[0] == folder / "libexecutorch.so"
    assert "libexecutorch_backend_xnnpack.so" in {path.name for path in files}
    assert "libfbjni.so" not in {path.name for path in files}
    # The stand-in's runtime is the wheel's library, which has the name of the app's.
    runtime = next(workspace.root.rglob("wheel/libexecutorch.so"))
    before_it = [tmp_path / "libfbjni.so", runtime]
    loaded = subprocess.run(
        [sys.executable, "-c", _LOAD, *map(str, [*before_it, *files])],
        env={"LD_LIBRARY_PATH": f"{runtime.parent}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert loaded.stdout == "40 hidden\n", loaded.stderr

    before = log.read_text()
    build_library(chosen, checkout, fbjni, workspace, project, log=log)
    again = log.read_text()[len(before) :]
    assert "ninja: no work to do" in again
    assert "-G Ninja" not in again


def test_an_apps_library_differs_from_a_runners(checkout: Checkout, tmp_path: Path) -> None:
    chosen = plan(checkout)
    assert chosen.provider.value == "source"
    assert chosen.build_target == "android-x86_64"
    assert "etdump" not in chosen.component_names
    tools = BuildTools(Path("cmake"), Path("ninja"), Path("clang++"), None)
    tree = BuildTree(tmp_path, checkout)
    file = Toolchain((), Path("clang++"), ())
    definitions = library_definitions(chosen, tree, tools, file, None, None)
    wanted = {
        "ANDROID_ABI": "x86_64",
        "ANDROID_PLATFORM": "android-30",
        "ANDROID_STL": "c++_static",
        "EXECUTORCH_BUILD_EXTENSION_RUNNER_UTIL": "ON",
        "EXECUTORCH_PAL_DEFAULT": "android",
        "EXECUTORCH_BUILD_XNNPACK": "ON",
        "ETDEPLOY_FBJNI": str(tmp_path / "fbjni"),
        "ETDEPLOY_EXECUTORCH_SOURCE": checkout.path,
    }
    assert wanted.items() <= definitions.items()


def test_what_the_recipe_sets_by_hand_stays(checkout: Checkout, tmp_path: Path) -> None:
    chosen = plan(checkout, cmake={"EXECUTORCH_PAL_DEFAULT": "minimal"})
    tools = BuildTools(Path("cmake"), Path("ninja"), Path("clang++"), None)
    file = Toolchain((), Path("clang++"), ())
    definitions = library_definitions(
        chosen, BuildTree(tmp_path, checkout), tools, file, None, None
    )
    assert definitions["EXECUTORCH_PAL_DEFAULT"] == "minimal"


def test_no_ndk_is_told_without_the_way_of_runners(
    checkout: Checkout, fbjni: Path, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match="NDK") as caught:
        build_library(plan(checkout), checkout, fbjni, Workspace(tmp_path / "c"), tmp_path / "p")
    assert "sdkmanager 'ndk;" in str(caught.value.remedy)
    assert "musl" not in str(caught.value.remedy)


@pytest.mark.usefixtures("own_compiler")
def test_an_aar_without_headers_is_told(checkout: Checkout, tmp_path: Path) -> None:
    aar = tmp_path / "empty.aar"
    with zipfile.ZipFile(aar, "w") as archive:
        archive.writestr("classes.jar", b"")
    with pytest.raises(BuildError, match="x86_64"):
        build_library(plan(checkout), checkout, aar, Workspace(tmp_path / "c"), tmp_path / "p")


# --- the Java API


@pytest.fixture(scope="module")
def tools() -> Tools:
    try:
        sdk = kept_sdk()
    except SdkUnavailable as why:
        pytest.skip(str(why))
    return require_tools(find_tools(station(sdk), [], compile_sdk=API))


def test_the_java_api_of_the_checkout_becomes_a_jar(
    checkout: Checkout, tools: Tools, tmp_path: Path
) -> None:
    source = checkout.folder / native._SOURCES / "org/pytorch/executorch/Module.kt"
    source.parent.mkdir(parents=True)
    source.write_text(
        "package org.pytorch.executorch\n"
        "import com.facebook.jni.HybridData\n"
        "import com.facebook.jni.annotations.DoNotStrip\n"
        "class Module(@field:DoNotStrip private val mHybridData: HybridData)\n"
    )
    jars = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        jars.append(build_api(checkout, tools, tmp_path / name, tmp_path / "project"))
    assert jars[0] == tmp_path / "project/app/libs/executorch.jar"
    with zipfile.ZipFile(jars[0]) as archive:
        assert archive.namelist() == ["org/pytorch/executorch/Module.class"]


def test_a_checkout_without_the_java_api_is_told(
    checkout: Checkout, tools: Tools, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match="Java API"):
        build_api(checkout, tools, tmp_path, tmp_path / "project")
