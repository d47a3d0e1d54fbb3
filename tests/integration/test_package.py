"""The built package, installed in a clean environment elsewhere, does the main job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "model: {example: mlp}\nexport: {backend: xnnpack}\nbenchmark: {iterations: 5}\n"


def do(*argv: object, cwd: Path | None = None, **env: str) -> str:
    """Runs a command of the test; none of this project's checkout is on its Python path."""
    done = subprocess.run(
        [str(arg) for arg in argv],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    do(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


def test_the_sdist_has_every_file_of_the_checkout(packages: Path) -> None:
    """So its tests find what they read: examples, docs, the configuration of the checks."""
    [sdist] = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    tracked = set(do("git", "ls-files", cwd=ROOT).splitlines())
    assert {"dev.py", "examples/stripes/recipe.yaml", "tests/conftest.py"} <= tracked
    assert tracked - names == set()
    assert not [name for name in names if ".venv" in name or "etdeploy-out" in name]


def test_the_wheel_carries_recipes_templates_and_toolchains(packages: Path) -> None:
    [wheel] = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("recipes", "templates", "toolchains"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                assert f"etdeploy/data/{path.relative_to(ROOT)}" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_the_wheel_runs_the_main_job_in_a_clean_environment(packages: Path, tmp_path: Path) -> None:
    [wheel] = packages.glob("*.whl")
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if not uv:
        pytest.skip("uv is not installed: pip would copy gigabytes of PyTorch")
    venv = tmp_path / "venv"
    do(uv, "venv", "--quiet", "--python", sys.executable, venv)
    do(uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", f"{wheel}[export]")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "r.yaml").write_text(RECIPE)
    etdeploy = venv / "bin" / "etdeploy"
    # Only the environment itself and the system's tools are found.
    path = f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    record = json.loads(
        do(etdeploy, "run", "--recipe", "r.yaml", "--json", cwd=tmp_path / "elsewhere",
           PATH=path, ETDEPLOY_CACHE_DIR=str(tmp_path / "cache"))
    )  # fmt: skip
    assert record["workload"]["outputs_compared"]
    assert all(output["within_tolerance"] for output in record["workload"]["outputs"])
    schema = json.loads(do(etdeploy, "recipes", "schema", cwd=tmp_path))
    assert schema["title"]
    assert "xnnpack" in do(etdeploy, "recipes", "list", cwd=tmp_path)
