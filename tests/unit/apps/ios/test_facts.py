"""The facts that an iOS project is filled in with."""

from __future__ import annotations

import pytest

from etdeploy.apps.ios.platform import ios_app, project_ids, quoted, target_name
from etdeploy.core.errors import CheckError, UsageError
from tests.unit.apps.ios.test_products import make_program


def _app(**changes: object) -> object:
    facts = {
        "app_id": "org.example.net",
        "name": "Net",
        "model_name": "net",
        "workload": "inference",
        "executorch_version": "1.5.1",
        "etdeploy_version": "0.1",
    }
    return ios_app(make_program(delegates=("XnnpackBackend",)), **{**facts, **changes})  # type: ignore[arg-type]


def test_the_facts_follow_from_the_program() -> None:
    app = ios_app(
        make_program(delegates=("CoreMLBackend",)).model_copy(update={"size_bytes": 2 << 30}),
        app_id="org.example.net", name="My Net", model_name="my-net", workload="inference",
        executorch_version="1.5.1", etdeploy_version="0.1", team="ABCDE12345", bundled=False,
    )  # fmt: skip
    assert (app.target, app.package_branch) == ("MyNet", "swiftpm-1.5.1")
    assert (app.threadpool, app.increased_memory) == (False, True)
    assert app.products == ("backend_coreml", "executorch")


def test_a_program_that_the_package_cannot_run_is_refused() -> None:
    with pytest.raises(CheckError, match="QnnBackend"):
        ios_app(
            make_program(delegates=("QnnBackend",)), app_id="a.b", name="x", model_name="x",
            workload="inference", executorch_version="1.5.1", etdeploy_version="0.1",
        )  # fmt: skip


@pytest.mark.parametrize("app_id", ["convnet", "org.example.my_net", "org..net", "org.né", ""])
def test_a_bundle_id_that_apple_does_not_take_is_refused(app_id: str) -> None:
    with pytest.raises(UsageError, match="bundle id") as caught:
        _app(app_id=app_id)
    assert "--set app.id=" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("my-model.v2", "MyModelV2"),
        ("convnet", "Convnet"),
        ("SmolLM2-135M", "SmolLM2135M"),
        ("3d", "Model3d"),
        ("swift", "SwiftApp"),
        ("execuTorch", "ExecuTorchApp"),
        ("größe", "GrE"),
    ],
)
def test_the_target_is_a_word_that_swift_and_files_take(name: str, target: str) -> None:
    assert target_name(name) == target


def test_ids_have_24_digits_and_depend_on_the_app_and_the_name_alone() -> None:
    uuid = project_ids("org.example.net")
    names = ["target", "project", "App.swift", "build App.swift"]
    ids = [uuid(name) for name in names]
    assert len(set(ids)) == 4
    assert all(len(each) == 24 and set(each) <= set("0123456789ABCDEF") for each in ids)
    assert ids == [project_ids("org.example.net")(name) for name in names]
    assert uuid("target") != project_ids("org.example.other")("target")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Net", "Net"),
        ("", '""'),
        ("My net", '"My net"'),
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("swiftpm-1.5.1", '"swiftpm-1.5.1"'),
        ("http://x", '"http://x"'),
    ],
)
def test_strings_are_quoted_as_xcode_does(text: str, written: str) -> None:
    assert quoted(text) == written
