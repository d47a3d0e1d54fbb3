"""Vulkan: the GPU of an Android phone or of a Linux machine."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.backends import vulkan_query
from etdeploy.backends.base import NEW_FILE, Backend
from etdeploy.backends.schemes import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.core.commands import system_command
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable
from etdeploy.core.errors import Blocker, require
from etdeploy.core.processes import process

if TYPE_CHECKING:
    from etdeploy.backends.values import Destination, Partitions, Workstation
    from etdeploy.core.values import DoctorCheck


class Vulkan(Backend):
    """Vulkan, whose shaders are compiled with the runtime."""

    def build_blockers(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Iterator[Blocker]:
        found = _glslc(station, options)
        if isinstance(found, Blocker):
            yield found

    def definitions(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """The shader compiler that was tried: cmake looks by itself, and could find another."""
        return {OPTION: str(require(_glslc(station, options)).path)}

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        """No driver on this machine; others say so when they run."""
        return driver_blocker() if _is_here(where) else None

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        blocker = driver_blocker(finished=partitions.finished) if _is_here(where) else None
        if blocker:
            yield blocker

    def failure(self, text: str, device: str) -> Diagnosis | None:
        return VULKAN_FAILURES.diagnose(text, driver=driver_remedy(device.partition(":")[0]))

    def findings(self, station: Workstation) -> Iterator[DoctorCheck]:
        from etdeploy.backends.values import tool_finding

        found = find_glslc(station.environ)
        known = found if isinstance(found, Blocker) else found.version or str(found.path)
        yield tool_finding("glslc", "building the Vulkan backend", known)


def _glslc(station: Workstation, options: Mapping[str, str | None]) -> Glslc | Blocker:
    return find_glslc(station.environ, options.get(OPTION))


def _is_here(where: Destination) -> bool:
    return where.is_here and where.target.system == "linux"


# Mesa's drivers for GPUs that a machine does not have report a failed initialization.
_MEANINGS = (
    (r"libvulkan\.so", "the system has no Vulkan library"),
    (r"VK_ERROR_INCOMPATIBLE_DRIVER", "there is no Vulkan driver"),
    (r"vkEnumerate.*VK_ERROR_INITIALIZATION_FAILED|no driver", "no Vulkan driver finds its GPU"),
)


def explained(why: str) -> str:
    """What it means that Vulkan does not start, with its own words in parentheses."""
    meaning = next((meaning for words, meaning in _MEANINGS if re.search(words, why)), None)
    return f"{meaning} ({why})" if meaning else why


def driver_remedy(kind: str) -> str:
    """How a kind of device gets a driver."""
    if kind == "android":
        return "Use a phone whose GPU has a Vulkan driver."
    if kind == "qemu":
        return "Use a device with a GPU: an emulated one has none."
    return (
        "Install the driver of the GPU's maker, or Mesa's, which also runs without a GPU:\n"
        f"{system_command('mesa-vulkan-drivers')}\n"
        "If VK_ICD_FILENAMES or VK_DRIVER_FILES is set, Vulkan sees no other drivers than it names."
    )


_UNAVAILABLE = "backend VulkanBackend is linked, but not available"
_NO_DEVICE = "VulkanBackend is in the runner, but not available on this device"
_OTHER = (OTHER_BACKEND, f"Export the model again for another backend, {NEW_FILE}.")
_DRIVER = (f"{{driver}}\n{_OTHER[0]}", f"{{driver}}\n{_OTHER[1]}")
_SMALLER = (
    "Close other apps that use the GPU, or export 16-bit floats: --set export.quantization=fp16",
    f"Close other apps that use the GPU, or export the model in 16-bit floats, {NEW_FILE}.",
)
# Exceptions of backends/vulkan/runtime/vk_api in 1.3 to 1.5, and an assertion of VulkanBackend.cpp.
VULKAN_FAILURES = FailureTable(
    "Vulkan",
    7,
    (
        FailurePattern(
            rf"{_UNAVAILABLE}: (?P<reason>.+)",
            f"{_NO_DEVICE}: {{reason}}",
            *_DRIVER,
            formats={"reason": explained},
        ),
        FailurePattern(_UNAVAILABLE, _NO_DEVICE, *_DRIVER),
        FailurePattern(
            r"Shader (?P<name>\S+) not compatible with device\. Missing support for extension or "
            r"physical device feature: (?P<feature>.+)",
            "the GPU or its driver lacks {feature}, which the shader {name} needs",
            *_OTHER,
        ),
        FailurePattern(
            r"VulkanBackend.*build_graph\(\).*Missing operator: (?P<name>\S+)",
            "ExecuTorch's Vulkan backend has no operator {name}, which the program delegates to it",
            *_OTHER,
        ),
        FailurePattern(
            r"returned VK_ERROR_OUT_OF_DEVICE_MEMORY",
            "the GPU does not have enough memory for the model",
            *_SMALLER,
        ),
        FailurePattern(
            r"returned VK_ERROR_DEVICE_LOST",
            "the GPU's driver gave up, usually because one piece of work took too long",
            *_OTHER,
        ),
        FailurePattern(
            r"Exception raised from \S+ at \S*vulkan\S+:\d+: (?P<reason>.+)",
            "ExecuTorch's Vulkan backend failed: {reason}",
            *_OTHER,
        ),
    ),
)
VULKAN = Vulkan(
    name="vulkan",
    delegate_id="VulkanBackend",
    features=(
        ("android.hardware.vulkan.version", "0x401000"),
        ("android.hardware.vulkan.compute", "0"),
    ),
    quantizations=("none", "fp16", "int8_static", "8da4w"),
    lowering="etdeploy.export.worker.backends.vulkan",
    needs="ExecuTorch's Vulkan libraries, which are not in any wheel, and glslc",
    get="The provider `source` builds them (`auto` uses it); glslc is in the Vulkan SDK\n"
    "and in Debian's package glslc, from version 13 on.",
    component="backend_vulkan",
    switch="EXECUTORCH_BUILD_VULKAN",
    cmake_target="vulkan_backend",
    submodules=(
        "backends/vulkan/third-party/Vulkan-Headers",
        "backends/vulkan/third-party/VulkanMemoryAllocator",
        "backends/vulkan/third-party/volk",
    ),
    aar="executorch-android-vulkan",
    systems=("android", "linux"),
    loads=True,
    # On Linux with Mesa's software driver, not on a phone.
    tried=True,
)


OPTION = "GLSLC_PATH"
"""The variable of ExecuTorch's cmake files that names the compiler."""

_TIMEOUT_S = 60.0
# Those of ExecuTorch's backends/vulkan/runtime/gen_vulkan_spv.py, as its cmake file calls it.
_FLAGS = ("-c", "-fshader-stage=compute", "-Werror", "-O")


@dataclass(frozen=True)
class _Feature:
    """GLSL extensions that ExecuTorch's shaders use; the first one names the feature in messages.

    `body` is a shader's code that uses them, `vulkan` the version that ExecuTorch compiles it for.
    """

    extensions: tuple[str, ...]
    body: str
    vulkan: str = "1.1"

    @property
    def name(self) -> str:
        """For messages and for the shader's file."""
        return self.extensions[0]

    @property
    def shader(self) -> str:
        """A shader that compiles only with this feature."""
        required = "".join(f"#extension {name} : require\n" for name in self.extensions)
        return f"#version 450 core\n{required}layout(local_size_x = 1) in;\n{self.body}\n"


_TYPES = "GL_EXT_shader_explicit_arithmetic_types"
_BUFFER = "layout(std430, binding = 0) buffer Data {{ {0} v[]; }};"
_ADD = _BUFFER + " void main() {{ v[0] = v[1] + {0}(1); }}"
# Read from the shaders and from gen_vulkan_spv.py, which writes some of the requirements: those of
# 1.3.1, 1.4.1 and 1.5.0 differ in how often they occur only. Shaderc 2023.2 (Debian 12) lacks the
# last two, and the NDK's the dot products (#14507); 2025.2 (Debian 13) has all.
_FEATURES = (
    _Feature(
        ("GL_EXT_control_flow_attributes",),
        _BUFFER.format("int")
        + " void main() { [[unroll]] for (int i = 0; i < 4; ++i) { v[i] = i; } }",
    ),
    _Feature(("GL_EXT_debug_printf",), 'void main() { debugPrintfEXT("x"); }'),
    _Feature(
        ("GL_EXT_shader_16bit_storage", f"{_TYPES}_float16"),
        _ADD.format("float16_t"),
    ),
    _Feature(("GL_EXT_shader_8bit_storage", f"{_TYPES}_int8"), _ADD.format("int8_t")),
    _Feature((f"{_TYPES}_int16", "GL_EXT_shader_16bit_storage"), _ADD.format("int16_t")),
    _Feature((f"{_TYPES}_int64",), _ADD.format("int64_t")),
    _Feature((f"{_TYPES}_float64",), _ADD.format("float64_t")),
    _Feature(
        ("GL_EXT_integer_dot_product",),
        _BUFFER.format("int") + " void main() { v[0] = dotPacked4x8AccSatEXT(v[1], v[2], v[3]); }",
    ),
    _Feature(
        (
            "GL_KHR_cooperative_matrix",
            "GL_KHR_memory_scope_semantics",
            "GL_KHR_shader_subgroup_basic",
            _TYPES,
        ),
        _BUFFER.format("float16_t")
        + """
void main() {
  coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
  coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
  coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> c;
  coopMatLoad(a, v, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(b, v, 256, 16, gl_CooperativeMatrixLayoutRowMajor);
  coopMatLoad(c, v, 512, 16, gl_CooperativeMatrixLayoutRowMajor);
  coopMatStore(coopMatMulAdd(a, b, c), v, 512, 16, gl_CooperativeMatrixLayoutRowMajor);
}""",
        vulkan="1.3",
    ),
)
_INSTALL = (
    "Install a newer one: Debian's package glslc from version 13 on, or the Vulkan SDK\n"
    "(vulkan.lunarg.com/sdk/home):\n"
    "source setup-env.sh   # in the SDK's folder: sets VULKAN_SDK and PATH"
)


@dataclass(frozen=True)
class Glslc:
    """A shader compiler that compiles everything that ExecuTorch's shaders use."""

    path: Path
    version: str | None


def find_glslc(environ: Mapping[str, str], named: str | None = None) -> Glslc | Blocker:
    """The named glslc, that of VULKAN_SDK, or the first in PATH: the order of ExecuTorch's cmake.

    Its version does not decide, as the names of releases do not say what they can compile. It is
    started three times: for its version, and to compile short shaders for two versions of Vulkan.
    """
    path = _look(environ, named)
    if path is None:
        why = "building the Vulkan backend requires glslc, which is not installed"
        if named:
            why = f"runtime.cmake.{OPTION} names {named}, which is not a program"
        return Blocker("glslc", why, _INSTALL.replace("Install a newer one", "Install glslc"))
    version = glslc_version(_version(path))
    missing, said = _lacking(path)
    if not missing:
        return Glslc(path, version)
    from_ndk = " of the Android NDK" if "shader-tools" in path.parts else ""
    why = f"{path} ({version or 'of unknown version'}{from_ndk})"
    if len(missing) == len(_FEATURES):
        return Blocker("glslc", f"{why} compiles no shader: {said}", _INSTALL)
    return Blocker(
        "glslc",
        f"{why} lacks {' and '.join(missing)}, which shaders of ExecuTorch's Vulkan backend need",
        _INSTALL,
    )


def glslc_version(said: str) -> str | None:
    """Shaderc's version in the output of `glslc --version`.

    The output has forms such as `shaderc v2025.3 v2025.3`, `shaderc 2023.2-1` and `shaderc
    v2022.3-dev unknown hash`.
    """
    found = re.search(r"^shaderc v?(\d+\.\d+)", said, re.M)
    return found[1] if found else None


def _look(environ: Mapping[str, str], named: str | None) -> Path | None:
    sdk = environ.get("VULKAN_SDK")
    folders = [Path(sdk) / "bin"] if sdk else []
    folders += [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    paths = [Path(named)] if named else [folder / "glslc" for folder in folders]
    return next((path.absolute() for path in paths if _is_program(path)), None)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _lacking(path: Path) -> tuple[list[str], str]:
    """The features that it cannot compile, and the first line that it printed."""
    missing: list[str] = []
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="etdeploy-glslc-") as name:
        folder = Path(name)
        for vulkan, features in groupby(_FEATURES, key=lambda feature: feature.vulkan):
            tried = list(features)
            said += _compile(path, folder, vulkan, tried)
            missing += [f.name for f in tried if not (folder / f"{f.name}.comp.spv").is_file()]
    return missing, next((line for line in said if line.strip()), "it says nothing")


def _compile(path: Path, folder: Path, vulkan: str, features: Iterable[_Feature]) -> list[str]:
    """Compiles one shader for each feature into the folder; what the compiler printed."""
    shaders = {f"{feature.name}.comp": feature.shader for feature in features}
    for name, text in shaders.items():
        (folder / name).write_text(text, encoding="utf-8")
    # It continues with the other files after an error, and writes none for a shader with an error.
    argv = (str(path), *_FLAGS, f"--target-env=vulkan{vulkan}", *shaders)
    try:
        outcome = process.run(process.Request(argv, cwd=folder, timeout_s=_TIMEOUT_S))
    except OSError as error:
        return [error.strerror or str(error)]
    return outcome.stderr.splitlines()


def _version(path: Path) -> str:
    try:
        return process.run(process.Request((str(path), "--version"), timeout_s=_TIMEOUT_S)).stdout
    except OSError:
        return ""


_QUERY_TIMEOUT_S = 20.0


def driver_blocker(*, finished: bool = False) -> Blocker | None:
    """Why Vulkan finds no device here; None if it finds one, or if asking it failed."""
    problem = vulkan_problem()
    if problem is None:
        return None
    return Blocker(
        what="Vulkan driver",
        why=f"Vulkan cannot be used on this machine: {explained(problem)}",
        remedy=f"{driver_remedy('host')}\n{OTHER_PROGRAM if finished else OTHER_BACKEND}",
    )


@cache
def vulkan_problem() -> str | None:
    """What Vulkan says; None if it has a device, or if asking it failed."""
    argv = (sys.executable, "-I", "-S", str(vulkan_query.__file__))
    outcome = process.run(process.Request(argv, timeout_s=_QUERY_TIMEOUT_S))
    said = outcome.stderr.splitlines()
    return said[-1] if outcome.exit_code == 1 and said else None
