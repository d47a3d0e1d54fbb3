"""The preloaded worker forks itself for each order; what the forks do is a stand-in here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core.processes.forks import ForkRefusedError, ForkServer
from etdeploy.core.processes.process import Outcome, Request, fork_server, run
from etdeploy.export.protocol import ModelSources
from etdeploy.export.spec import CodeReference, ExportSpec
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.serve import Preloaded
from tests.support.processes import eventually, is_alive

pytestmark = [
    pytest.mark.usefixtures("real_processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="exports share a process only on Linux"),
]

_SERVER = """
import os, socket, sys
from etdeploy.export.worker.serve import Preloaded
from etdeploy.export.worker.serve import Server

def work(arguments, preloaded):
    exec(arguments[1])
    return 0

control = socket.socket(fileno=int(sys.argv[-1]))
preloaded = Preloaded(frozenset({"sympy.core", "executorch"}))
sys.exit(Server(control, WHY or preloaded, work).run()())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    with _serving(tmp_path) as made:
        yield made


def _serving(tmp_path: Path, why: str = ""):  # type: ignore[no-untyped-def]
    code = _SERVER.replace("WHY", repr(why))
    return fork_server(Request((sys.executable, "-c", code), log=tmp_path / "server.log"))


def _fork(server: ForkServer, folder: Path, code: str, spec: ExportSpec | None = None) -> Outcome:
    path = folder / "spec.json"
    (spec or ExportSpec(example="mlp", backend="portable")).save(path)
    argv = (sys.executable, "start.py", str(path), code)
    return run(Request(argv, folder, {"ETDEPLOY_NEW": "new"}), server)


def test_a_fork_is_a_process_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    code = (
        "print(os.getcwd(), os.environ['ETDEPLOY_NEW'], sys.argv[0], sys.stdin.read() == '',"
        " os.getsid(0) == os.getpid(), flush=True); sys.exit(4)"
    )
    outcome = _fork(server, tmp_path, code)
    assert outcome.stdout == f"{tmp_path} new start.py True True\n"
    assert outcome.exit_code == 4


def test_a_crash_is_the_forks_own(server: ForkServer, tmp_path: Path) -> None:
    assert _fork(server, tmp_path, "os.kill(os.getpid(), 11)").signal_name == "SIGSEGV"
    assert _fork(server, tmp_path, "os.kill(os.getpid(), 9)").signal_name == "SIGKILL"
    assert _fork(server, tmp_path, "os._exit(7)").exit_code == 7
    assert _fork(server, tmp_path, "").ok


def test_the_end_of_the_server_leaves_no_fork(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\nimport time; time.sleep(600)"
    thread: threading.Thread
    with _serving(tmp_path) as server:
        thread = threading.Thread(target=_ends_somehow, args=(server, tmp_path, code))
        thread.start()
        assert eventually(lambda: pid_file.exists() and pid_file.read_text() != "")
    thread.join()
    assert eventually(lambda: not is_alive(int(pid_file.read_text())))


def _ends_somehow(server: ForkServer, folder: Path, code: str) -> None:
    from etdeploy.core.processes.forks import ForkLostError

    with pytest.raises(ForkLostError):
        _fork(server, folder, code)


def test_what_cannot_fork_says_why(tmp_path: Path) -> None:
    with (
        _serving(tmp_path, "2 threads run in it") as server,
        pytest.raises(ForkRefusedError, match="^2 threads run in it$"),  # noqa: RUF043
    ):
        _fork(server, tmp_path, "")


def test_a_folder_that_is_gone_is_told(server: ForkServer, tmp_path: Path) -> None:
    with pytest.raises(ForkRefusedError, match="No such file"):
        run(Request(("python", "start.py", "/nowhere/spec.json", ""), tmp_path), server)


def test_a_namesake_of_an_imported_module_gets_a_process_of_its_own(
    server: ForkServer, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    (users / "sympy").mkdir(parents=True)
    (users / "sympy" / "__init__.py").write_text("")
    (users / "my_model.py").write_text("")
    python = CodeReference(file=str(users / "my_model.py"), name="make")
    with pytest.raises(ForkRefusedError, match="users/sympy "):
        _fork(server, tmp_path, "", ExportSpec(python=python, backend="portable"))
    assert _fork(server, tmp_path, "").ok, "without the user's code nobody imports it"


@pytest.mark.parametrize(
    ("entry", "met"),
    [
        ("sympy.py", True),
        ("sympy.cpython-311-x86_64-linux-gnu.so", True),
        ("sympy/__init__.py", True),
        ("sympy/", False),  # any module comes before a folder without code
        ("sympy.txt", False),
        ("sympy_helpers.py", False),
        ("core.py", False),
        ("executorch/__init__.py", False),  # pinned in every worker
        ("etdeploy/__init__.py", False),  # every worker has it before
    ],
)
def test_what_is_called_like_an_imported_module(tmp_path: Path, entry: str, met: bool) -> None:
    first, _, rest = entry.partition("/")
    (tmp_path / first).mkdir() if "/" in entry else (tmp_path / first).write_text("")
    if rest:
        (tmp_path / entry).write_text("")
    spec = ExportSpec(python=CodeReference(module="package.models", name="make"))
    preloaded = Preloaded(
        frozenset({"sympy.core", "executorch.exir", "etdeploy.export.worker.pipeline"}),
        frozenset({"etdeploy.export"}),
    )
    assert preloaded.met_beside(spec, tmp_path) == (tmp_path / first if met else None)
    assert preloaded.met_beside(ExportSpec(example="mlp"), tmp_path) is None


def test_what_was_imported_ahead_counts_as_imported_by_the_user() -> None:
    recorder = FileRecorder({"pydantic.main", "torch.nn", "executorch"})
    assert set(recorder.sources().distributions) == {"pydantic"}
    assert FileRecorder().sources() == ModelSources()
