"""Builds a generated project with Xcode, on a Mac."""

from __future__ import annotations

import plistlib
import tempfile
from pathlib import Path

from etdeploy.apps.ios.archive import write_ipa
from etdeploy.apps.ios.signing import (
    LIST_IDENTITIES,
    certificate_command,
    identities,
    subject_command,
    team_of_subject,
)
from etdeploy.apps.ios.xcode import XcodeBuild, build_failure, built_app, no_xcode
from etdeploy.core.processes import process
from etdeploy.core.progress import Progress


def build_ipa(build: XcodeBuild, ipa: Path, progress: Progress, log: Path | None) -> Path:
    """Builds and signs the app, and packs it; gives the app's folder.

    Args:
        build: What to build.
        ipa: Where the packed app goes.
        progress: Reports each stage.
        log: Receives all commands and their output.

    Raises:
        BuildError: There is no Xcode, or it failed.
    """
    progress("building the app with Xcode")
    _run(build.build(), build.project.parent, log)
    app = built_app(_run(build.settings(), build.project.parent, log))
    progress("packing the app")
    write_ipa(app, ipa)
    return app


def app_version(app: Path) -> str:
    """The version for people in the Info.plist of a built app; empty if there is none."""
    with (app / "Info.plist").open("rb") as stream:
        return str(plistlib.load(stream).get("CFBundleShortVersionString", ""))


def keychain_teams() -> tuple[str, ...]:
    """The teams whose certificates this Mac's keychain has; none on another system."""
    try:
        listed = process.run(process.Request(LIST_IDENTITIES))
    except FileNotFoundError:
        return ()
    found = (_team_of(name) for name in identities(listed.stdout))
    return tuple(team for team in found if team)


def xcode_version() -> str:
    """What Xcode says of itself; empty where there is none."""
    try:
        return process.run(process.Request(("xcodebuild", "-version"))).stdout.strip()
    except FileNotFoundError:
        return ""


def _team_of(name: str) -> str | None:
    certificate = process.run(process.Request(certificate_command(name)))
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(certificate.stdout)
        file.flush()
        subject = process.run(process.Request(subject_command(file.name)))
    return team_of_subject(subject.stdout)


def _run(argv: tuple[str, ...], cwd: Path, log: Path | None) -> str:
    try:
        outcome = process.run(process.Request(argv, cwd=cwd, log=log))
    except FileNotFoundError:
        raise no_xcode() from None
    if not outcome.ok:
        raise build_failure(f"{outcome.stdout}\n{outcome.stderr}", log)
    return outcome.stdout
