"""What every kind of device does with a bundle."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from etdeploy.core.hashing import digest_json
from etdeploy.devices.base import Bundle, BundleFile


def bundle_digest(bundle: Bundle) -> str:
    """Names the bundle's folder: the same files at the same paths give the same name."""
    return digest_json(sorted((f.path, f.sha256, f.executable) for f in bundle.files))


def by_content(bundle: Bundle) -> list[BundleFile]:
    """One file for each content; executable when any of its files is."""
    contents: dict[str, BundleFile] = {}
    for file in bundle.files:
        known = contents.get(file.sha256)
        if known is None or (file.executable and not known.executable):
            contents[file.sha256] = file
    return list(contents.values())


def check_bundle(bundle: Bundle) -> None:
    """Raises unless every file of the bundle stays in its folder."""
    for name in () if bundle.app else bundle.process.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} cannot name a variable")
    for file in bundle.files:
        check_relative(file.path)
        if not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
            raise ValueError(f"{file.path}: {file.sha256!r} is not a SHA-256")
    paths = [file.path for file in bundle.files]
    if len(set(paths)) != len(paths):
        raise ValueError(f"a path occurs twice in the bundle: {sorted(paths)}")


def check_relative(path: str) -> str:
    """`path` itself when it stays below the folder that it is relative to.

    Raises:
        ValueError: It does not.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no path inside a folder")
    return path


def check_run_id(run_id: str) -> str:
    """`run_id` itself when it can name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run_id):
        raise ValueError(f"{run_id!r} cannot name a folder")
    return run_id


def command_line(
    bundle: Bundle, arguments: Sequence[str], bundle_folder: str, run_folder: str
) -> list[str]:
    """The words of the bundle's process with its arguments, as the device is to run them."""
    first, *rest = (
        _filled(word, bundle_folder, run_folder) for word in (*bundle.process.argv, *arguments)
    )
    return [posixpath.join(bundle_folder, first), *rest]


def environment(bundle: Bundle, bundle_folder: str, run_folder: str) -> dict[str, str]:
    """The variables for the bundle's process."""
    return {
        name: _filled(value, bundle_folder, run_folder)
        for name, value in bundle.process.environment.items()
    }


def _filled(text: str, bundle_folder: str, run_folder: str) -> str:
    return text.replace("{bundle}", bundle_folder).replace("{run}", run_folder)
