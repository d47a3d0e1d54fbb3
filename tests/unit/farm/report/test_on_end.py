"""The command that is started at the end of a night."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from etdeploy.farm.report import end
from etdeploy.farm.report.end import run_command, summarize
from etdeploy.farm.report.model import NightReport
from tests.support.judged_nights import OTHER
from tests.support.processes import eventually


def program(folder: Path, script: str) -> str:
    path = folder / "on-end"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_command_reads_the_summary_and_no_shell_reads_its_arguments(
    report: NightReport, tmp_path: Path
) -> None:
    odd = report.failures[0].model_copy(update={"message": "half \ud83d"})
    document = summarize(report.model_copy(update={"failures": (odd,)}), [tmp_path / "n.html"])
    out = tmp_path / "a b; touch hurt"
    assert run_command([program(tmp_path, 'cat > "$1"'), str(out)], document) == ""
    assert json.loads(out.read_text()) == document
    assert not (tmp_path / "hurt").exists()
    # It need not read.
    assert run_command([program(tmp_path, "exit 0")], document) == ""


def test_the_summary_has_what_a_script_needs(report: NightReport, tmp_path: Path) -> None:
    document = summarize(report, [tmp_path / "n.html"])
    json.dumps(document, allow_nan=False)
    assert document["exit_code"] == 1
    assert document["worse"][0]["verdict"] == document["verdicts"][0]["kind"] == "regressed"
    assert document["worse"][0]["commits"]
    assert document["failures"][0]["visits"] == 2
    assert document["quarantined"] == [
        {"identity": OTHER, "device": "Old phone", "reason": "it is hot"}
    ]
    assert {each["label"] for each in document["devices"]} >= {"Old phone"}
    assert document["files"] == [str(tmp_path / "n.html")]


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        ("echo quiet; echo no such channel >&2; exit 3", ("exit code 3", "\n  no such channel")),
        ("echo only stdout; exit 1", ("exit code 1", "\n  only stdout")),
        ("seq 100; exit 1", ("exit code 1", "\n  96\n  97\n  98\n  99\n  100")),
        ("head -c 99999 /dev/zero | tr '\\0' x; exit 1", ("\n  " + "x" * 400,)),
        ("exit 4", ("exit code 4",)),
        ("kill -9 $$", ("SIGKILL",)),
    ],
)
def test_a_command_that_fails_gives_its_exit_code_and_last_lines(
    tmp_path: Path, script: str, facts: tuple[str, ...]
) -> None:
    why = run_command([program(tmp_path, script)], {})
    assert all(fact in why for fact in facts)
    assert why.endswith(facts[-1])


def test_a_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end, "_COMMAND_S", 0.3)
    command = program(tmp_path, 'sleep 600 & echo $! > "$1"; wait')
    assert "after 0 s" in run_command([command, str(tmp_path / "pid")], {})
    child = int((tmp_path / "pid").read_text())
    assert eventually(lambda: not Path(f"/proc/{child}").exists() or _is_dead(child))


def _is_dead(process: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True
