"""What is said of the installed glslc is what it does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from etdeploy.backends.vulkan import Glslc, find_glslc

pytestmark = pytest.mark.integration
_MAY_BE_LACKING = ("GL_EXT_integer_dot_product", "GL_KHR_cooperative_matrix")


def test_it_lacks_exactly_what_it_is_said_to_lack(tmp_path: Path) -> None:
    found = find_glslc(os.environ)
    if not isinstance(found, Glslc) and "not installed" in found.why:
        pytest.skip("glslc is not installed")
    program = found.path if isinstance(found, Glslc) else Path(found.why.split(" (")[0])
    said = "" if isinstance(found, Glslc) else found.why
    assert set(re.findall(r"GL_\w+", said)) == {
        name for name in _MAY_BE_LACKING if not _knows(program, name, tmp_path)
    }


def _knows(program: Path, extension: str, folder: Path) -> bool:
    shader = folder / "one.comp"
    shader.write_text(
        f"#version 450\n#extension {extension} : require\n"
        "layout(local_size_x = 1) in;\nvoid main() {}\n"
    )
    argv = (program, "--target-env=vulkan1.3", "-Werror", shader, "-o", folder / "one.spv")
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0
