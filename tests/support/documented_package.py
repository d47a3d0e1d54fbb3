"""The package that docs/backends.md shows, as pip would have installed it."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
_BLOCK = re.compile(r"^```(?:toml|python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lay_out_package(folder: Path) -> Path:
    """Writes its files and its metadata into a folder, for `sys.path`; returns the folder."""
    files = dict(_BLOCK.findall(_PAGE.read_text()))
    project = files.pop("pyproject.toml")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "etdeploy_gemm" / "__init__.py").touch()
    metadata = folder / "etdeploy_gemm-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: etdeploy-gemm\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(_entry_points(project))
    return folder


def _entry_points(project: str) -> str:
    """The entry points of a pyproject.toml in the format of the metadata."""
    found = re.findall(r'^\[project\.entry-points\."(.+)"\]\n((?:\w+ = ".+"\n)+)', project, re.M)
    return "".join(f"[{group}]\n{lines.replace(chr(34), '')}" for group, lines in found)
