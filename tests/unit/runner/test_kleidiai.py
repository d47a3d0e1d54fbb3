"""Whether KleidiAI can be had is told before cmake tries for minutes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.plan.model import RuntimePlan
from etdeploy.runner.kernel_sources import (
    SOURCE_DIR,
    kleidiai_problem,
    require_kleidiai,
)
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_PROGRAM = make_program(make_method(delegates=("XnnpackBackend",)))
_FILE = "backends/xnnpack/third-party/XNNPACK/cmake/DownloadKleidiAI.cmake"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def _plan(target: str = "android-arm64", **runtime: object) -> RuntimePlan:
    recipe = make_recipe(runtime={"provider": "source", "kleidiai": True, **runtime})
    return make_plan(recipe, _PROGRAM, target)


def _checkout(folder: Path, port: int) -> Path:
    file = folder / _FILE
    file.parent.mkdir(parents=True)
    file.write_text(
        f"ExternalProject_Add(kleidiai\n  URL http://127.0.0.1:{port}/kleidiai.zip\n)\n"
    )
    return folder


def test_a_host_that_does_not_answer_is_told_with_both_ways_out(
    tmp_path: Path, closed_port: int
) -> None:
    found = kleidiai_problem(_plan(), _checkout(tmp_path, closed_port), tmp_path / "cmake")
    assert found is not None
    assert found.why == (
        f"XNNPACK downloads KleidiAI, and 127.0.0.1:{closed_port} cannot be reached: "
        "Connection refused"
    )
    assert "--set runtime.kleidiai=false" in found.remedy
    assert f"--set runtime.cmake.{SOURCE_DIR}=" in found.remedy
    assert f"http://127.0.0.1:{closed_port}/kleidiai.zip" in found.remedy
    with pytest.raises(BuildError, match="cannot be reached"):
        require_kleidiai(_plan(), _checkout(tmp_path / "again", closed_port), tmp_path / "cmake")


def test_a_host_that_answers_is_enough(tmp_path: Path, open_port: int) -> None:
    assert kleidiai_problem(_plan(), _checkout(tmp_path, open_port), tmp_path / "cmake") is None


def test_a_host_that_keeps_silent_is_waited_for_a_short_time(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etdeploy.runner.kernel_sources._PROBE_S", 0.05)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: threading.Event().wait())
    found = kleidiai_problem(_plan(), _checkout(tmp_path, closed_port), tmp_path / "cmake")
    assert found is not None
    assert found.why.endswith("no answer within 0.05 s")


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_is_asked_in_place_of_the_host(
    variable: str, tmp_path: Path, open_port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://user:secret@127.0.0.1:{open_port}")
    checkout = _checkout(tmp_path, closed_port)
    assert kleidiai_problem(_plan(), checkout, tmp_path / "cmake") is None
    monkeypatch.setenv(variable, f"127.0.0.1:{closed_port}")
    found = kleidiai_problem(_plan(), _checkout(tmp_path / "b", open_port), tmp_path / "cmake")
    assert found is not None
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert kleidiai_problem(_plan(), tmp_path / "b", tmp_path / "cmake") is None


def test_an_earlier_download_of_the_same_release_is_enough(
    tmp_path: Path, closed_port: int
) -> None:
    checkout, cmake = _checkout(tmp_path / "executorch", closed_port), tmp_path / "cmake"
    (cmake / "kleidiai-download").mkdir(parents=True)
    told = cmake / "kleidiai-download" / "CMakeLists.txt"
    told.write_text((checkout / _FILE).read_text())
    # What a download that failed leaves.
    (cmake / "kleidiai-source").mkdir()
    assert kleidiai_problem(_plan(), checkout, cmake) is not None
    (cmake / "kleidiai-source" / "CMakeLists.txt").write_text("")
    assert kleidiai_problem(_plan(), checkout, cmake) is None
    told.write_text(told.read_text().replace("kleidiai.zip", "older.zip"))
    assert kleidiai_problem(_plan(), checkout, cmake) is not None


def test_sources_that_are_given_have_to_be_there(tmp_path: Path, closed_port: int) -> None:
    checkout = _checkout(tmp_path / "executorch", closed_port)
    given = tmp_path / "my kleidiai"
    plan = _plan(cmake={SOURCE_DIR: str(given)})
    found = kleidiai_problem(plan, checkout, tmp_path / "cmake")
    assert found is not None
    assert f"{SOURCE_DIR} is {given}" in found.why
    assert f"--set runtime.cmake.{SOURCE_DIR}=" in found.remedy
    given.mkdir()
    (given / "CMakeLists.txt").write_text("")
    assert kleidiai_problem(plan, checkout, tmp_path / "cmake") is None


@pytest.mark.parametrize(
    ("target", "runtime"),
    [
        ("android-arm64", {"kleidiai": False}),
        ("android-arm64", {"cmake": {"XNNPACK_ENABLE_KLEIDIAI": False}}),
        ("linux-x86_64", {}),
    ],
)
def test_nothing_is_asked_where_it_is_not_built(
    target: str, runtime: dict[str, object], tmp_path: Path, closed_port: int
) -> None:
    plan = _plan(target, **runtime)
    assert kleidiai_problem(plan, _checkout(tmp_path, closed_port), tmp_path / "cmake") is None


def test_nothing_is_known_before_xnnpack_is_fetched(tmp_path: Path) -> None:
    assert kleidiai_problem(_plan(), tmp_path, tmp_path / "cmake") is None
