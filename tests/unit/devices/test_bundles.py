"""What every kind of device does with a bundle."""

from __future__ import annotations

import pytest

from etdeploy.devices.base import AppLaunch, Bundle, BundleFile, ProcessLaunch
from etdeploy.devices.bundles import (
    bundle_digest,
    by_content,
    check_bundle,
    check_relative,
    check_run_id,
)


def make(
    *paths: str, command: tuple[str, ...] = ("runner",), sha256: str = "a" * 64, **env: str
) -> Bundle:
    files = tuple(BundleFile(source="x", path=p, sha256=sha256, size_bytes=1) for p in paths)
    return Bundle(files=files, launch=ProcessLaunch(argv=command, environment=env))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a\0b"])
def test_paths_that_leave_their_folder_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path inside"):
        check_relative(path)
    with pytest.raises(ValueError, match="path inside"):
        check_bundle(make(path))


def test_other_bundles_that_are_refused() -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        check_bundle(make("a", "a"))
    with pytest.raises(ValueError, match="not a SHA-256"):
        check_bundle(make("a", sha256="$(reboot)"))
    bad = ProcessLaunch(argv=("runner",), environment={"A;B": "1"})
    with pytest.raises(ValueError, match="cannot name a variable"):
        check_bundle(make("a").model_copy(update={"launch": bad}))


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "a b", "$(x)", "-rf"])
def test_run_ids_that_cannot_name_a_folder(run_id: str) -> None:
    with pytest.raises(ValueError, match="cannot name a folder"):
        check_run_id(run_id)


def test_the_digest_depends_on_contents_paths_and_modes_alone() -> None:
    first = make("a", "b")
    assert bundle_digest(first) == bundle_digest(make("b", "a", command=("other",), X="1"))
    assert bundle_digest(first) != bundle_digest(make("a", "c"))
    executable = first.files[0].model_copy(update={"executable": True})
    assert bundle_digest(first) != bundle_digest(
        first.model_copy(update={"files": (executable, first.files[1])})
    )


def test_a_content_is_executable_when_one_of_its_files_is() -> None:
    plain = make("a").files[0]
    program = plain.model_copy(update={"path": "b", "executable": True})
    bundle = Bundle(files=(plain, program), launch=ProcessLaunch(argv=("b",)))
    assert by_content(bundle) == [program]


def test_a_bundle_of_an_app_starts_no_process() -> None:
    launch = AppLaunch(id="org.example.app", archive="app.apk")
    bundle = Bundle(files=(), launch=launch)
    check_bundle(bundle)
    assert bundle.app == launch
    with pytest.raises(TypeError, match=r"org\.example\.app"):
        bundle.process  # noqa: B018 - the property raises
    assert Bundle.model_validate_json(bundle.model_dump_json()) == bundle
