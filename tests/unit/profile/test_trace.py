from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import pip_command
from etdeploy.core.errors import EtdeployError, ExportError, RunError
from etdeploy.core.processes import process
from etdeploy.core.processes.process import Outcome, Request
from etdeploy.profile import traces
from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    Trace,
    TraceFailure,
    TraceRequest,
    TraceRequests,
    trace_file,
)
from etdeploy.profile.traces import read_traces
from tests.support.bench_values import SIMULATED, make_record
from tests.support.text_values import make_text_record
from tests.support.traces import make_event

_FILES = {"record": "record.json", "etdump": "etdump.etdp", "etrecord": "etrecord.bin"}
_CONTENT = b"\x0c\0\0\0\x08\0\0\0ED00" + b"\0" * 4


def _run(folder: Path, etdump: bytes | None = _CONTENT, **changes: Any) -> StoredRun:
    if etdump is not None:
        (folder / "etdump.etdp").write_bytes(etdump)
    return StoredRun(folder, make_record(**({"files": _FILES} | changes)))


def _told(run: StoredRun, tmp_path: Path) -> str:
    with pytest.raises(EtdeployError) as caught:
        read_traces(run, Workspace(tmp_path / "cache"))
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("etdump", "message"),
    [
        (None, "the trace etdump.etdp is not in the run's folder"),
        (b"", "the trace is empty"),
        (_CONTENT[:-2], "the trace is truncated: it has 14 of 16 bytes"),
        (_CONTENT[:3], "the trace is truncated"),
        (b"\x0c\0\0\0\x08\0\0\0ET12" + b"\0" * 4, "this is not an ETDump"),
    ],
)
def test_a_trace_that_is_not_whole_is_refused(
    tmp_path: Path, etdump: bytes | None, message: str
) -> None:
    assert message in _told(_run(tmp_path, etdump), tmp_path)


def test_a_run_without_a_profile_pass_is_refused(tmp_path: Path) -> None:
    told = _told(_run(tmp_path, files={"record": "record.json"}), tmp_path)
    assert "benchmark.profile=true" in told


def test_a_simulated_run_has_no_profile(tmp_path: Path) -> None:
    assert "the simulator's" in _told(_run(tmp_path, simulated=SIMULATED), tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "trace"
    folder.mkdir()
    outside.write_bytes(_CONTENT)
    (folder / "etdump.etdp").symlink_to(outside)
    assert "etdump.etdp is a link" in _told(_run(folder, None), tmp_path)


def test_a_damaged_etrecord_is_refused_with_the_way_around_it(tmp_path: Path) -> None:
    (tmp_path / "etrecord.bin").write_bytes(b"PK\3\4 and then nothing")
    told = _told(_run(tmp_path), tmp_path)
    etrecord = tmp_path / "etrecord.bin"
    assert f"mv {etrecord} {etrecord}.bad\n" in told
    assert "etdeploy bench --recipe " in told


def test_without_the_inspector_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "installed_version", lambda _: None)
    with pytest.raises(ExportError, match="torch and executorch") as caught:
        read_traces(_run(tmp_path), Workspace(tmp_path / "cache"))
    assert pip_command("etdeploy[export]") in str(caught.value)


def test_a_record_that_was_made_otherwise_is_read_again(tmp_path: Path) -> None:
    def key() -> str:
        files = {"etdump": tmp_path / "etdump.etdp", "etrecord": tmp_path / "etrecord.bin"}
        request = TraceRequest(**{k: str(file) for k, file in files.items()}, method="forward")
        return traces._key([request], run)

    def write(content: str) -> None:
        with ZipFile(tmp_path / "etrecord.bin", "w") as archive:
            archive.writestr("debug_handle_map", content)

    run = _run(tmp_path)
    write("1")
    first = key()
    assert key() == first
    write("2")
    assert key() != first


def _ending(exit_code: int, failure: str | None = None, stderr: str = "") -> Any:
    """A worker that ends so."""

    def run(request: Request) -> Outcome:
        if failure:
            told = TraceFailure(file="/a/etdump.etdp", message=failure)
            told.save(Path(request.argv[-1]) / FAILURE_FILE)
        return Outcome(request.argv, exit_code, "", stderr, 1.0)

    return run


def test_what_the_worker_says_of_a_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run", _ending(1, "the trace cannot be read: Odd()"))
    told = _told(_run(tmp_path), tmp_path)
    assert "/a/etdump.etdp: " in told
    assert "Odd()" in told
    assert "etdeploy bench --recipe mlp.yaml --device host" in told


def test_a_worker_that_was_killed_is_no_fault_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run", _ending(-9, stderr="one\nlast words\n\n"))
    with pytest.raises(RunError, match=r"\(SIGKILL\): last words"):
        read_traces(_run(tmp_path), Workspace(tmp_path / "cache"))
    assert not list((tmp_path / "cache/traces").glob("[!.]*"))


def test_every_method_that_generated_text_has_a_trace_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"etdump.{m}": f"etdump.etdp.{m}" for m in ("prefill", "decode")}
    run = StoredRun(tmp_path, make_text_record(files={"record": "record.json", **files}))
    for name in files.values():
        (tmp_path / name).write_bytes(_CONTENT)
    asked: list[TraceRequest] = []

    def work(request: Request) -> Outcome:
        folder = Path(request.argv[-1])
        asked.extend(TraceRequests.load(folder / REQUEST_FILE).requests)
        for number, each in enumerate(asked):
            event = make_event(each.method, 0.0, 1.0)
            Trace(blocks=((event,),)).save(folder / trace_file(number))
        return Outcome(request.argv, 0, "", "", 1.0)

    monkeypatch.setattr(process, "run", work)
    found = read_traces(run, Workspace(tmp_path / "cache"))
    assert [each.etdump for each in asked] == [str(tmp_path / name) for name in files.values()]
    assert {method: each.blocks[0][0].name for method, each in found.items()} == {
        "prefill": "prefill", "decode": "decode",
    }  # fmt: skip
    # One process read both, and neither is read again.
    assert read_traces(run, Workspace(tmp_path / "cache")) == found
    assert len(asked) == 2
