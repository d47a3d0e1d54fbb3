"""Caches and output folders on file systems that refuse: read-only, small, without inodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import Cli

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
    assert result.stderr == (
        f"error (usage): {disk}/cache: the cache folder (ETDEPLOY_CACHE_DIR) cannot be used: "
        "Read-only file system\n"
        "  what to do: Make it writable, or name another folder:\n"
        "              export ETDEPLOY_CACHE_DIR=/path/to/another/folder\n"
    )


def test_a_home_folder_that_cannot_be_made(cli: Cli) -> None:
    result = cli("run", ETDEPLOY_CACHE_DIR="", HOME="/proc/nobody")
    assert result.code == 2
    assert "/proc/nobody/.cache/etdeploy: the cache folder (the default) cannot" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_disk_without_inodes(cli: Cli, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "nr_inodes=3,size=50m") as disk:
        result = cli("run", ETDEPLOY_CACHE_DIR=str(disk / "cache"))
    assert result.code == 4
    assert f"the file system {disk} has no room for another file (inode)" in result.stderr
    assert "export ETDEPLOY_CACHE_DIR=" in result.stderr
