"""The journal: what it holds after a kill, and what another search reads of it."""

from __future__ import annotations

from pathlib import Path

from etdeploy.tune.journal import (
    Journal,
    LayersFound,
    MeasuredCandidate,
    ProgramFailed,
    ProgramMade,
    SessionEnded,
    TimeSpent,
)

MADE = ProgramMade(
    program="{}", seconds=30, is_new=True, figures={"size": 4.0}, has_high_loss=False
)


def _session(latency: float, **figures: float) -> SessionEnded:
    measured = MeasuredCandidate(
        candidate="{}",
        series={"latency": (latency,)},
        figures={"latency": latency, **figures},
        record="/r",
    )
    return SessionEnded(phase="base", measured=(measured,), failed={"x": "crash"}, seconds=4)


def test_events_are_read_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "state")
    events = (
        MADE,
        ProgramFailed(program="p", seconds=5, reason="no"),
        _session(3.0, peak_memory=7.0),
        _session(2.0),
        LayersFound(layers=("a", "b"), seconds=2),
        TimeSpent(what="x", seconds=1),
    )
    for event in events:
        journal.append(event)
    again = Journal(tmp_path / "state").found
    assert again == journal.found
    assert again.spent_s == 30 + 5 + 4 + 4 + 2 + 1
    assert again.program_failures == {"p": "no"}
    assert again.failures == {"x": "crash"}
    assert again.layers == ("a", "b")
    # Later numbers count, and what was measured once stays.
    assert again.figures == {"{}": {"latency": 2.0, "peak_memory": 7.0}}
    assert (again.export_s, again.measure_s) == ([30], [2.0, 2.0])


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path: Path) -> None:
    Journal(tmp_path).append(MADE)
    path = Journal(tmp_path).path
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "program", "prog')
    journal = Journal(tmp_path)
    assert journal.found.programs == {"{}": MADE}
    assert path.read_bytes() == whole
    journal.append(_session(1.0))
    assert len(Journal(tmp_path).found.sessions) == 1


def test_an_event_of_another_release_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(MADE)
    with journal.path.open("ab") as stream:
        stream.write(b'{"kind": "from the future"}\nno json\n')
    journal.append(_session(1.0))
    found = Journal(tmp_path).found
    assert (len(found.programs), len(found.sessions)) == (1, 1)


def test_an_export_that_succeeds_later_is_no_failure(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(ProgramFailed(program="{}", seconds=1, reason="disk full"))
    journal.append(MADE)
    assert journal.found.program_failures == {}


def test_forgetting_begins_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(MADE)
    journal.forget()
    assert journal.found.spent_s == 0
    assert Journal(tmp_path).found.programs == {}
