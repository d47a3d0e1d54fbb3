"""All files of an app's project, by their paths in it."""

from __future__ import annotations

from pathlib import Path

from etdeploy.apps.model import Payload
from etdeploy.apps.platform import AppSubject, Platform
from etdeploy.apps.render import render_tree
from etdeploy.core.files.basic import folder_files
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.core.resources import code_digest
from etdeploy.core.values import Value


class Project(Value):
    """A project that was written.

    Attributes:
        folder: Where it is.
        platform: android or ios.
        id: The app's.
        files: A digest of all its files.
        from_source: Whether a build of etdeploy's puts its ExecuTorch into it; Android Studio finds
            none before.
        notes: What to know about it, as sentences.
    """

    folder: str
    platform: str
    id: str
    files: str
    from_source: bool = False
    notes: tuple[str, ...] = ()


def project_files(
    platform: Platform, subject: AppSubject, payload: Payload
) -> dict[str, bytes | Path]:
    """Every file of a project; the same values give the same bytes.

    Args:
        platform: Android or iOS.
        subject: What the app is made of.
        payload: The model's files.

    Raises:
        BuildError: What the app needs of this machine is missing.
    """
    files: dict[str, bytes | Path] = {**render_tree(platform.templates, platform.values(subject))}
    files |= platform.files(subject)
    files |= {f"{platform.payload}/{path}": content for path, content in payload.items()}
    return files


def maker_digest(platform: Platform) -> str:
    """Of everything that decides how a project looks: templates and code."""
    folder = platform.templates
    templates = {name: sha256_file(folder / name) for name in folder_files(folder)}
    return digest_json([templates, code_digest("apps")])
