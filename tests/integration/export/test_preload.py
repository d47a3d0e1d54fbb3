"""Real exports that share one process: what they give, and what one of them cannot do to others."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import ExportError, Interrupted
from etdeploy.core.values import silent
from etdeploy.export.cache import ExportedProgram
from etdeploy.export.preload import Exporter, preloaded_exports
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import load_provenance
from tests.support.export import SMALL, spec_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="exports share a process only on Linux"),
]

# Draws when it is imported and when it is called, and reads a module and a file beside it.
_MODEL = """
import os, random
import numpy, torch
import helper

DRAWN = torch.rand(4) + torch.from_numpy(numpy.random.rand(4).astype("float32")) + random.random()
SCALE = float(open(os.path.join(os.path.dirname(__file__), "scale.txt")).read())

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, helper.WIDTH)
        self.register_buffer("drawn", DRAWN * SCALE)

    def forward(self, x):
        return self.linear(x + self.drawn)

def make():
    return Model(), (torch.rand(1, 4),)

def crash():
    os.kill(os.getpid(), 11)

def kill_server():
    with open(f"/proc/{os.getppid()}/cmdline") as stream:
        is_server = "--serve" in stream.read()  # where it cannot fork, this is the test's process
    if is_server and not os.path.exists(MARK):
        open(MARK, "w").close()
        os.kill(os.getppid(), 9)
        __import__("time").sleep(600)
    return make()

def wait():
    print("::progress 0.15 waiting", flush=True)
    __import__("time").sleep(600)
"""


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    mark = tmp_path_factory.mktemp("marks") / "killed"
    (folder / "my_model.py").write_text(f"MARK = {str(mark)!r}\n{_MODEL}")
    (folder / "helper.py").write_text("WIDTH = 3\n")
    (folder / "scale.txt").write_text("0.5")
    return folder


@pytest.fixture(scope="module")
def quantized() -> ExportSpec:
    model = {"example": "mlp", "arguments": SMALL["mlp"]}
    return spec_of(
        {"model": model, "export": {"backend": "xnnpack", "quantization": "int8_static"}}
    )


def _users_spec(users: Path, function: str) -> ExportSpec:
    model = {"python": f"{users}/my_model.py:{function}"}
    return spec_of({"model": model, "export": {"backend": "portable"}})


@pytest.fixture(scope="module")
def exporter(users: Path, quantized: ExportSpec) -> Iterator[Exporter]:
    functions = ("make", "crash", "make", "wait", "kill_server")
    with preloaded_exports((quantized, *(_users_spec(users, f) for f in functions))) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


@pytest.mark.nightly
def test_two_at_once_give_what_processes_of_their_own_give(
    tmp_path: Path, users: Path, quantized: ExportSpec, exporter: Exporter
) -> None:
    specs = (quantized, _users_spec(users, "make"))

    def export(name: str, number: int, *shared: Exporter) -> ExportedProgram:
        log = tmp_path / f"{name}-{number}.log"
        return export_program(specs[number], Workspace(tmp_path / name), silent, log, *shared)

    with ThreadPoolExecutor(2) as threads:
        forked = list(threads.map(lambda n: export("forked", n, exporter), range(2)))
    for number, program in enumerate(forked):
        log = (tmp_path / f"forked-{number}.log").read_text()
        assert not [text for text in ("a process of", "importing ExecuTorch") if text in log]
        own = export("own", number)
        assert program.sha256 == own.sha256
        assert _files(program) == _files(own)
    read = load_provenance(Path(forked[1].folder)).code_files
    assert sorted(Path(name).name for name in read) == ["helper.py", "my_model.py", "scale.txt"]


def _files(program: ExportedProgram) -> dict[str, bytes | list[str]]:
    """What does not tell times: inputs, expected outputs, the names of the files that were read."""
    folder = Path(program.folder)
    kept: dict[str, bytes | list[str]] = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.bin")
    }
    kept.pop("etrecord.bin")
    return kept | {"code": sorted(load_provenance(folder).code_files)}


def test_a_crash_is_told_and_hurts_nobody_else(
    tmp_path: Path, users: Path, exporter: Exporter, log: Path
) -> None:
    workspace = Workspace(tmp_path / "cache")
    with pytest.raises(ExportError, match=r"\(SIGSEGV\)"):
        export_program(_users_spec(users, "crash"), workspace, silent, log, exporter)
    text = log.read_text()
    assert 'my_model.py", line ' in text, "faulthandler names the user's line"
    assert "a process of" not in text
    export_program(_users_spec(users, "make"), workspace, silent, log, exporter)
    assert "a process of" not in log.read_text()


def test_a_stop_leaves_nothing(tmp_path: Path, users: Path, exporter: Exporter, log: Path) -> None:
    def stop(text: str, fraction: float | None = None) -> None:
        if text == "waiting":
            threading.Thread(target=flag.set).start()

    workspace = Workspace(tmp_path / "cache")
    with cancel.trapped_signals():
        flag = cancel.current()
        with pytest.raises(Interrupted):
            export_program(_users_spec(users, "wait"), workspace, stop, log, exporter)
    assert list((workspace.root / "programs").iterdir()) == []


def test_an_export_outlives_the_server(
    tmp_path: Path, users: Path, exporter: Exporter, log: Path
) -> None:
    workspace = Workspace(tmp_path / "cache")
    spec = _users_spec(users, "kill_server")
    assert not export_program(spec, workspace, silent, log, exporter).cached
    assert "[the preloaded process" in log.read_text()
