"""Finds the shader compiler for ExecuTorch's Vulkan backend."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core import process
from etdeploy.core.blocker import Blocker
from etdeploy.core.values import Explained

# ExecuTorch's shaders need this extension, which older compilers do not have (#14507): Debian 12's
# 2023.2 and the NDK's reject it. The version does not decide it reliably, so a shader is compiled.
_NEEDED = "GL_EXT_integer_dot_product"
_SHADER = f"""#version 450
#extension {_NEEDED} : require
layout(local_size_x = 1) in;
layout(binding = 0) buffer Data {{ int v[]; }};
void main() {{ v[0] = dotPacked4x8AccSatEXT(v[1], v[2], v[3]); }}
"""
# From ExecuTorch 1.4.1's backends/vulkan/cmake/ShaderLibrary.cmake; 1.3.1 requires 1.4.321.0.
SDK_VERSION = "1.4.341.1"
_INSTALL = (
    f"Install the Vulkan SDK {SDK_VERSION} or newer (vulkan.lunarg.com/sdk/home) and\n"
    "source setup-env.sh   # in its folder: sets VULKAN_SDK and PATH"
)
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Glslc:
    """A shader compiler that is new enough.

    Attributes:
        path: The program.
        version: Of shaderc, as it reports; None if it reports none.
    """

    path: Path
    version: str | None


def find_glslc(environ: Mapping[str, str]) -> Glslc | Blocker:
    """The glslc of VULKAN_SDK, or else that in PATH: the search order of ExecuTorch's cmake file.

    It is started twice: for its version, and to compile a short shader.

    Args:
        environ: The environment.
    """
    path = _look(environ)
    if path is None:
        return Blocker(
            "glslc", "building the Vulkan backend requires glslc, which is not installed", _INSTALL
        )
    version = glslc_version(_ask((str(path), "--version")) or "")
    with tempfile.TemporaryDirectory() as folder:
        shader = Path(folder) / "probe.comp"
        shader.write_text(_SHADER, encoding="utf-8")
        output = str(shader.with_suffix(".spv"))
        compiled = _ask((str(path), "--target-env=vulkan1.1", "-Werror", str(shader), "-o", output))
    if compiled is not None:
        return Glslc(path, version)
    from_ndk = f" (it comes from the Android NDK: {path})" if "shader-tools" in path.parts else ""
    why = (
        f"{path} {version or '(of unknown version)'} is too old{from_ndk}: it does not compile "
        f"{_NEEDED}, which ExecuTorch's shaders need (#14507)"
    )
    return Blocker("glslc", why, _INSTALL)


def glslc_definitions(glslc: Glslc) -> tuple[Explained, ...]:
    """Definitions that make cmake use the glslc that was tried."""
    reason = f"shaderc {glslc.version or 'of unknown version'}, which compiles {_NEEDED}"
    return (Explained(name="GLSLC_PATH", value=str(glslc.path), reason=reason),)


def glslc_version(said: str) -> str | None:
    """Shaderc's version in the output of `glslc --version`.

    The output has forms such as `shaderc v2025.3 v2025.3`, `shaderc 2023.2-1` and `shaderc
    v2022.3-dev unknown hash`.
    """
    found = re.search(r"^shaderc v?(\d+\.\d+)", said, re.M)
    return found[1] if found else None


def _look(environ: Mapping[str, str]) -> Path | None:
    sdk = environ.get("VULKAN_SDK")
    folders = [Path(sdk) / "bin"] if sdk else []
    folders += [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    for path in (folder / "glslc" for folder in folders):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def _ask(argv: tuple[str, ...]) -> str | None:
    """What the program printed; None when it failed or cannot be started."""
    try:
        outcome = process.run(process.Request(argv, timeout_s=_TIMEOUT_S))
    except OSError:
        return None
    return outcome.stdout if outcome.ok else None
