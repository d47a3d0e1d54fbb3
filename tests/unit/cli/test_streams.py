"""Real processes in broken surroundings: streams closed or full, no folder, an early Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("real_processes")

ETDEPLOY = f"'{sys.executable}' -m etdeploy"


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What a bash script with etdeploy as `$1` gives."""
    argv = ["bash", "-c", f'etdeploy() {{ {ETDEPLOY} "$@"; }}; {script}']
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("where", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")]
)
@pytest.mark.parametrize("verb", ["--help", "recipes schema"])
def test_a_result_that_cannot_be_written(verb: str, where: str, why: str, tmp_path: Path) -> None:
    done = shell(f"etdeploy {verb} {where}", tmp_path)
    assert done.returncode == 10
    assert done.stderr.startswith(
        f"error (output): the result cannot be written to standard output: {why}\n"
    )
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_enough_is_told_nothing(tmp_path: Path) -> None:
    done = shell("(sleep 0.1; etdeploy recipes schema; echo $? >code) | true; cat code", tmp_path)
    assert done.stderr == ""
    shell("until [ -s code ]; do sleep 0.05; done", tmp_path)
    assert (tmp_path / "code").read_text() == "10\n"


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_messages_that_nobody_can_hear_stop_nothing(where: str, tmp_path: Path) -> None:
    done = shell(f"etdeploy completion zsh {where}", tmp_path)
    assert done.returncode == 0
    assert "_ETDEPLOY_COMPLETE" in done.stdout
    assert shell(f"etdeploy rnu {where}", tmp_path).returncode == 2
    assert shell(f"etdeploy plan --recipe nowhere {where} >&-", tmp_path).returncode == 2


def test_no_file_of_ours_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import sys; from etdeploy.cli import entry, main\n"
        "def look(arguments): raise SystemExit(open('file', 'w').fileno())\n"
        "main.run_cli = look; entry.main()"
    )
    (tmp_path / "look.py").write_text(code)
    done = shell(f"'{sys.executable}' look.py <&- >&- 2>&-", tmp_path)
    assert done.returncode > 2


@pytest.mark.parametrize("verb", ["run", "plan", "recipes"])
def test_a_working_folder_that_was_deleted(verb: str, tmp_path: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; etdeploy {verb}", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error (usage): the current folder cannot be used: "
        "No such file or directory\n"
        "  what to do: It was deleted or moved, or you may not enter it. Change to another one:\n"
        "              cd ~\n"
    )


_SLOW = "import os, time\nos.kill(os.getpid(), {:d})\ntime.sleep(600)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_still_loads_is_quiet(tmp_path: Path, number: int) -> None:
    (tmp_path / "click.py").write_text(_SLOW.format(number))
    done = shell("PYTHONPATH=. etdeploy --version", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_result_is_quiet(tmp_path: Path, number: int) -> None:
    code = (
        "import atexit, os; from etdeploy.cli.entry import main\n"
        f"atexit.register(os.kill, os.getpid(), {number:d}); main()"
    )
    (tmp_path / "late.py").write_text(code)
    done = shell(f"'{sys.executable}' late.py --version", tmp_path)
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.startswith("etdeploy, version")


def test_loading_goes_on_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os\nos.kill(os.getpid(), 2)\nraise SystemExit(7)\n")
    done = shell("trap '' INT; PYTHONPATH=. etdeploy --version", tmp_path)
    assert done.returncode == 7


_SHOWN = "4 µs ± 1 °C ▁█ – naïve 漢 \\udcff"
_SHOW = f"""
from etdeploy.cli import entry, main
from etdeploy.core import console
def show(_):
    console.result("{_SHOWN}")
    console.write_chunk("2²\\n")
    console.result_json({{"name": "µ 漢 \U0001f600"}})
    console.warn("45 °C…")
    return 0
main.run_cli = show
entry.main()
"""


@pytest.mark.parametrize(
    "encoding",
    ["PYTHONIOENCODING=ascii", "LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"],
)
def test_characters_that_an_encoding_lacks_are_written_in_simpler_ones(
    encoding: str, tmp_path: Path
) -> None:
    (tmp_path / "show.py").write_text(_SHOW, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", f"{encoding} '{sys.executable}' show.py"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    shown, more, written = done.stdout.split(b"\n", 2)
    assert shown == b"4 us +- 1 C _# - naive ? \xff"
    assert more == b"2^2"
    assert written.isascii()
    assert json.loads(written) == {"name": "µ 漢 \U0001f600"}
    assert done.stderr == b"warning: 45 C...\n"


def test_utf_8_has_every_character(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(_SHOW, encoding="utf-8")
    done = shell(f"PYTHONIOENCODING=utf-8 '{sys.executable}' show.py | head -c 14", tmp_path)
    assert done.stdout == "4 µs ± 1 °C"
