"""Caches and output folders on file systems that refuse: read-only, small, without inodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.facts import lacks
from tests.support.program_files import Plan, pte

pytestmark = pytest.mark.integration


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    """A file system at `folder` while the block runs."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", *arguments, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    with mounted(folder, "-t", "tmpfs", "-o", options, "tmpfs") as made:
        yield made


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "cache", tmp_path, {})


def test_a_cache_that_is_read_only_is_told_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "ro") as disk:
        result = cli("run", ETDEPLOY_CACHE_DIR=str(disk / "cache"))
    assert result.code == 2
    assert result.stderr.startswith(f"error (usage): {disk}/cache: ")
    assert not lacks(result.stderr, "Read-only", "export ETDEPLOY_CACHE_DIR=")


def test_a_home_folder_that_cannot_be_made(cli: Cli) -> None:
    result = cli("run", ETDEPLOY_CACHE_DIR="", HOME="/proc/nobody")
    assert result.code == 2
    assert result.stderr.startswith("error (usage): /proc/nobody/.cache/etdeploy: ")
    assert "Traceback" not in result.stderr


def test_a_disk_without_inodes(cli: Cli, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "nr_inodes=3,size=50m") as disk:
        result = cli("run", ETDEPLOY_CACHE_DIR=str(disk / "cache"))
    assert result.code == 4
    assert not lacks(result.stderr, str(disk), "(inodes)", "export ETDEPLOY_CACHE_DIR=")


def finished_program(cli: Cli) -> str:
    """A recipe with a program of 3 MB, which needs no torch."""
    segment = os.urandom(3_000_000)
    (cli.folder / "big.pte").write_bytes(pte(Plan(), segments=[segment]))
    return cli.recipe("model: {program: big.pte}\nexport: {backend: portable}\n")


@pytest.mark.parametrize(("size", "step"), [("2m", "export"), ("5m", "push")])
def test_a_small_cache_is_not_the_devices_fault(
    cli: Cli, tmp_path: Path, size: str, step: str
) -> None:
    recipe = finished_program(cli)
    with tmpfs(tmp_path / "disk", f"size={size}") as disk:
        result = cli("push", "--recipe", recipe, ETDEPLOY_CACHE_DIR=str(disk / "cache"))
    assert result.code == 4
    assert f"{step:<10} failed" in result.stderr
    assert f"error (build): {disk}/cache/" in result.stderr
    assert not lacks(result.stderr, f"file system {disk} (", "export ETDEPLOY_CACHE_DIR=")


def test_a_full_output_folder_is_not_the_caches_fault(cli: Cli, tmp_path: Path) -> None:
    recipe = finished_program(cli)
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        result = cli("export", "--recipe", recipe, "--output", str(disk / "out"))
        assert list(disk.iterdir()) == []
    assert result.code == 4
    assert not lacks(result.stderr, f"file system {disk} (", "--output FOLDER")
    assert "ETDEPLOY_CACHE_DIR" not in result.stderr
    assert "etdeploy clean" not in result.stderr


def test_a_disk_that_is_nearly_full_is_told_before_anything_starts(
    cli: Cli, tmp_path: Path
) -> None:
    recipe = finished_program(cli)
    with tmpfs(tmp_path / "disk", "size=512k") as disk:
        result = cli("push", "--recipe", recipe, ETDEPLOY_CACHE_DIR=str(disk / "cache"))
    assert result.code == 4
    assert result.stderr.startswith(f"error (build): {disk}/cache: No space")
