"""Why apps ended, in the words of several versions of Android."""

from __future__ import annotations

import pytest

from etdeploy.devices.android.app_exit import (
    ExitInfo,
    exit_info,
    parse_ending,
    parse_exits,
    unknown_exit,
)

_ID = "org.example.a"
_SINCE = "2026-10-01 19:20:00"
# Android 11 and 12 have the description before the state, newer ones on a line of its own.
_RECORD_11 = """        ApplicationExitInfo #{n}:
          timestamp=2026-10-01 19:21:57.535 pid={pid} realUid=10196 packageUid=10196 user=0
          process=org.example.a reason={reason} subreason=0 (UNKNOWN) status={status}
          importance=100 pss=0.00 rss=4.2GB description={description} state=empty trace=null
"""
_RECORD_13 = """        ApplicationExitInfo #{n}:
          timestamp=2026-10-01 19:21:57.518 pid={pid} realUid=10450 packageUid=10450 user=0
          process=org.example.a reason={reason} subreason=0 (UNKNOWN) status={status}
          importance=100 pss=0,00 rss=557MB state=empty trace=null
          description={description}
"""
_HEAD = """ACTIVITY MANAGER PROCESS EXIT INFO (dumpsys activity exit-info)
Last Timestamp of Persistence Into Persistent Storage: 2026-10-01 15:54:06.558
  package: org.example.a
    Historical Process Exit for uid=10196
"""
_JAVA = """--------- beginning of crash
10-01 19:21:57.100  3421  3450 E AndroidRuntime: FATAL EXCEPTION: main
10-01 19:21:57.100  3421  3450 E AndroidRuntime: Process: org.example.a, PID: 3421
10-01 19:21:57.100  3421  3450 E AndroidRuntime: java.lang.IllegalStateException: no model
10-01 19:21:57.100  3421  3450 E AndroidRuntime: \tat org.example.a.Main.run(Main.kt:12)
10-01 19:21:57.100  3421  3450 E AndroidRuntime: Caused by: java.io.IOException: gone
"""
_NATIVE = """10-01 19:21:57.591  3421  3460 F libc    : Fatal signal 6 (SIGABRT), code -6
10-01 19:21:57.677  2595  2595 F DEBUG   : *** *** *** *** *** *** *** *** *** *** *** *** ***
10-01 19:21:57.677  2595  2595 F DEBUG   : Build fingerprint: 'vivo/PD1709/PD1709:8.1.0/OPM1:user'
10-01 19:21:57.677  2595  2595 F DEBUG   : pid: 3421, tid: 3460, name: a  >>> org.example.a <<<
10-01 19:21:57.677  2595  2595 F DEBUG   : signal 6 (SIGABRT), code -6 (SI_TKILL), fault addr ----
10-01 19:21:57.679  2595  2595 F DEBUG   : Abort message: 'method.cpp:100] In function init()'
10-01 19:21:57.679  2595  2595 F DEBUG   :     x0   0000000000000000  x1   00000000000009cd
10-01 19:21:57.680  2595  2595 F DEBUG   : backtrace:
10-01 19:21:57.680  2595  2595 F DEBUG   :       #00 pc 000000000007ba70  /libexecutorch.so (abort)
"""
_LMKD = (
    "10-01 19:21:56.514   479   479 I lowmemorykiller: Kill 'org.example.a' (3421), uid 10196, "
    "oom_score_adj 0 to free 4445960kB rss, 2413008kB swap; reason: min watermark is breached even "
    "after kill\n"
)


def said(exit_info: str = "", crash: str = "", log: str = "") -> str:
    return f"#exit\n{exit_info}#crash\n{crash}#log\n{log}"


def record(
    reason: str, status: int = 0, description: str = "null", text: str = _RECORD_11, pid: int = 3421
) -> str:
    return text.format(n=0, pid=pid, reason=reason, status=status, description=description)


def test_no_record_is_none() -> None:
    assert parse_exits("Bad activity command, or no activities match: exit-info\n") == ()
    assert parse_exits(_HEAD) == ()
    assert parse_exits("ApplicationExitInfo #0:\n  reason=2\n") == ()


def test_the_record_is_that_of_the_process_and_of_the_time() -> None:
    old = ExitInfo("2026-10-01 19:19:59", 3421, 5, 11, "")
    ours = ExitInfo("2026-10-01 19:21:00", 3421, 3, 0, "")
    other = ExitInfo("2026-10-01 19:22:00", 3500, 4, 0, "")
    stopped = ExitInfo("2026-10-01 19:23:00", 3300, 10, 0, "stop due to from pid 8273")
    assert exit_info([other, ours, old], 3421, _SINCE) == ours
    assert exit_info([other, old], 3421, _SINCE) is None
    assert exit_info([stopped, other, ours], None, _SINCE) == other
    assert exit_info([stopped], None, _SINCE) is None


@pytest.mark.parametrize(
    ("reason", "status", "exit_code", "signal_name", "memory", "cause"),
    [
        ("3 (LOW_MEMORY)", 0, 137, "SIGKILL", True, "memory ran out"),
        ("3 (LOW MEMORY)", 9, 137, "SIGKILL", True, "memory ran out"),
        ("2 (SIGNALED)", 9, 137, "SIGKILL", None, "SIGKILL ended"),
        ("2 (SIGNALED)", 11, 139, "SIGSEGV", False, "SIGSEGV ended"),
        ("5 (APP CRASH(NATIVE))", 4, 132, "SIGILL", False, "SIGILL ended"),
        ("4 (APP CRASH(EXCEPTION))", 0, 1, None, None, "an exception"),
        ("6 (ANR)", 0, 1, None, False, "did not answer"),
        ("1 (EXIT SELF)", 3, 3, None, None, "exit code 3"),
        ("9 (EXCESSIVE RESOURCE USAGE)", 0, 137, "SIGKILL", False, "used too much"),
        ("13 (OTHER KILLS BY SYSTEM)", 0, 137, "SIGKILL", False, "for its own reason"),
    ],
)
def test_each_reason_is_told(
    reason: str,
    status: int,
    exit_code: int,
    signal_name: str | None,
    memory: bool | None,
    cause: str,
) -> None:
    ending = parse_ending(said(_HEAD + record(reason, status)), _ID, 3421, _SINCE)
    assert ending
    assert (ending.exit_code, ending.signal_name) == (exit_code, signal_name)
    assert ending.out_of_memory is memory
    assert cause in ending.cause
    assert ending.outside is None


@pytest.mark.parametrize(
    ("reason", "description", "outside"),
    [
        ("10 (USER REQUESTED)", "remove task", "closed (remove task)"),
        ("16 (PACKAGE UPDATED)", "stop due to installPackageLI", "installed again (stop due"),
    ],
)
def test_what_somebody_did_is_no_fault_of_the_app(
    reason: str, description: str, outside: str
) -> None:
    text = record(reason, description=description, text=_RECORD_13)
    ending = parse_ending(said(_HEAD + text), _ID, 3421, _SINCE)
    assert ending
    assert str(ending.outside).startswith(outside)


@pytest.mark.parametrize("process", ["org.example.a.other", "org.example.a:remote", "org.example"])
def test_an_exception_of_another_app_is_not_its(process: str) -> None:
    crash = _JAVA.replace("Process: org.example.a,", f"Process: {process},")
    assert parse_ending(said(crash=crash), _ID, None, _SINCE) is None
    assert parse_ending(said(crash=_JAVA), _ID, 999, _SINCE) is None
    assert parse_ending(said(crash=_JAVA), _ID, None, "2026-10-01 19:22:00") is None, "earlier"


def test_a_native_crash_has_its_message_and_no_registers() -> None:
    for crash in (_NATIVE, "\n".join(_NATIVE.splitlines()[1:])):
        ending = parse_ending(said(crash=crash), _ID, 3421, _SINCE)
        assert ending
        assert (ending.exit_code, ending.signal_name) == (134, "SIGABRT")
        assert "method.cpp:100]" in ending.cause
        assert any("#00 pc" in line for line in ending.lines)
        assert not any("x0" in line for line in ending.lines)
    assert parse_ending(said(crash=_NATIVE), _ID, None, _SINCE), "it is found by its id"
    assert parse_ending(said(crash=_NATIVE), "org.example.b", None, _SINCE) is None


def test_a_line_may_name_the_user_too() -> None:
    crash = _JAVA.replace("  3421  3450", " u0_a196 3421  3450")
    ending = parse_ending(said(crash=crash), _ID, 3421, _SINCE)
    assert ending
    assert "no model" in ending.cause


def test_the_low_memory_killer_is_heard_where_the_system_keeps_nothing() -> None:
    ending = parse_ending(said(log=_LMKD), _ID, 3421, _SINCE)
    assert ending
    assert ending.out_of_memory is True
    assert "Kill 'org.example.a' (3421)" in ending.cause
    assert parse_ending(said(log=_LMKD), "org.example", 3421, _SINCE) is None


def test_what_the_app_warned_of_comes_first() -> None:
    log = (
        "10-01 19:21:50.100  3421  3450 I ExecuTorch: loading\n"
        "10-01 19:21:50.200  3421  3450 E ExecuTorch: Missing operator: [0] a::b\n"
        "10-01 19:21:50.200  1111  3450 E Other: nothing of it\n"
        "10-01 19:19:50.200  3421  3450 E Earlier: nothing of it\n"
    )
    ending = unknown_exit(said(log=log), 3421, _SINCE)
    [line] = ending.lines
    assert line.endswith("a::b")
    assert (ending.signal_name, ending.out_of_memory) == ("SIGKILL", None)
