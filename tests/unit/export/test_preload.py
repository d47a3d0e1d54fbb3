"""When exports share a process, and what happens when that cannot fork."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.processes import process
from etdeploy.core.processes.forks import ForkLostError, ForkRefusedError
from etdeploy.core.processes.process import Outcome, Request
from etdeploy.export import preload
from etdeploy.export.hf.memory import MachineMemory
from etdeploy.export.preload import OWN_PROCESSES, preloaded_exports, worker_environment
from etdeploy.export.spec import ExportSpec

FIRST = ExportSpec(example="mlp", backend="portable", quantization="none")
SECOND = ExportSpec(example="mlp", backend="xnnpack", quantization="int8_static")
FINISHED = ExportSpec(program="/models/model.pte")
DONE = Outcome((), 0, "", "", 1.0)
QUALCOMM: dict[str, str | None] = {"LD_LIBRARY_PATH": "/sdk"}


class Processes:
    """Stands for what starts processes, and notes what it is asked for."""

    def __init__(self) -> None:
        self.servers: list[tuple[str, ...]] = []
        self.environments: list[object] = []
        self.running = 0
        self.runs: list[object] = []
        self.fails: Exception | None = None

    @contextmanager
    def fork_server(self, request: Request) -> Iterator[object]:
        self.servers.append(request.argv[2:])
        self.environments.append(request.env)
        self.running += 1
        yield "the server"
        self.running -= 1

    def run(self, _request: Request, server: object = None) -> Outcome:
        self.runs.append(server)
        if server and self.fails:
            raise self.fails
        return DONE


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    made = Processes()
    monkeypatch.setattr(process, "fork_server", made.fork_server)
    monkeypatch.setattr(process, "run", made.run)
    monkeypatch.setattr(sys, "platform", "linux")
    return made


def _request(log: Path | None = None, **changes: Any) -> Request:
    return Request(("python",), env=worker_environment(FIRST), log=log, **changes)


@pytest.fixture
def two_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment(spec: ExportSpec) -> dict[str, str | None]:
        return QUALCOMM if spec is SECOND else worker_environment(spec)

    monkeypatch.setattr(preload, "worker_environment", environment)


def _never() -> None:
    pytest.fail("nothing is to be undone")


@pytest.mark.parametrize("specs", [(), (FIRST,), (FIRST, FINISHED)])
def test_fewer_than_two_exports_share_nothing(specs: tuple[ExportSpec, ...]) -> None:
    with preloaded_exports(specs) as exporter:
        assert exporter is OWN_PROCESSES


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_do_not_fork(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    with preloaded_exports((FIRST, SECOND)) as exporter:
        assert exporter is OWN_PROCESSES


def test_an_export_of_another_environment_gets_another_process(processes: Processes) -> None:
    with preloaded_exports((FIRST, SECOND)) as exporter:
        exporter.run(Request(("python",), env={"LD_LIBRARY_PATH": "/sdk"}), _never)
    assert processes.runs == [None]


@pytest.mark.usefixtures("two_environments")
def test_exports_of_one_environment_share_a_server_that_has_it(processes: Processes) -> None:
    with preloaded_exports((FIRST, SECOND, SECOND)) as exporter:
        exporter.run(_request(), _never)
        assert processes.servers == [], "there is one export of this environment"
        for _ in range(2):
            exporter.run(Request(("python",), env=QUALCOMM), _never)
    assert processes.servers == [("--serve", '[["xnnpack", "int8_static"]]')]
    assert processes.environments == [QUALCOMM]
    assert processes.runs == [None, "the server", "the server"]


@pytest.mark.usefixtures("two_environments")
def test_each_environment_has_its_server(processes: Processes) -> None:
    with preloaded_exports((FIRST, FIRST, SECOND, SECOND)) as exporter:
        for _ in range(2):
            exporter.run(_request(), _never)
        assert processes.running == 0, "the other's exports are all that is left"
        exporter.run(Request(("python",), env=QUALCOMM), _never)
        assert processes.running == 1
    assert processes.environments == [worker_environment(FIRST), QUALCOMM]
    assert processes.running == 0


def test_the_server_ends_with_the_last_export_that_is_expected(processes: Processes) -> None:
    with preloaded_exports((FIRST, SECOND)) as exporter:
        assert processes.servers == []
        exporter.run(_request(), _never)
        assert processes.running == 1
        exporter.run(_request(), _never)
        assert processes.running == 0
        exporter.run(_request(), _never)
    assert processes.runs == ["the server", "the server", None]
    needs = '[["portable", "none"], ["xnnpack", "int8_static"]]'
    assert processes.servers == [("--serve", needs)]


def test_only_who_waits_for_the_imports_is_told_of_them(processes: Processes) -> None:
    lines: list[str] = []
    with preloaded_exports((FIRST, SECOND)) as exporter:
        for _ in range(2):
            exporter.run(_request(on_line=lines.append), _never)
    [line] = lines
    assert line.startswith("::progress 0.01 ")
    assert processes.running == 0


@pytest.mark.parametrize("error", [ForkRefusedError("2 threads run in it"), ForkLostError()])
def test_without_a_fork_the_export_gets_another_process(
    processes: Processes, tmp_path: Path, error: Exception
) -> None:
    processes.fails = error
    undone: list[Callable[[], None] | bool] = []
    log = tmp_path / "log.txt"
    with preloaded_exports((FIRST, SECOND)) as exporter:
        assert exporter.run(_request(log), lambda: undone.append(True)) is DONE
    assert processes.runs == ["the server", None]
    assert undone == [True]
    assert str(error) in log.read_text()
    assert "the preloaded process" in log.read_text()


@pytest.mark.parametrize(("gib", "expected"), [(8, None), (16, "1")])
def test_large_tensors_get_huge_pages_where_there_is_memory(
    gib: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MachineMemory(total_bytes=gib << 30, free_bytes=gib << 29)
    monkeypatch.setattr(preload, "machine_memory", lambda: memory)
    assert worker_environment(FIRST).get("THP_MEM_ALLOC_ENABLE") == expected
