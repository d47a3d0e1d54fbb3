"""A night while it goes on: the table, the dashboard's pages."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Standing, VisitState
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.report.pages import Dashboard, build_pages, write_dashboard
from etdeploy.farm.report.status import (
    Activity,
    DeviceStatus,
    Status,
    StatusContext,
    derive_status,
    status_text,
)
from etdeploy.farm.work.artifact import GATE
from tests.support.judged_nights import OTHER, PHONE, done, run_of, visit

NOW = datetime(2026, 11, 11, 3, 0, tzinfo=timezone.utc)


def going(report: NightReport) -> Status:
    states = [
        done(10, 1, run_of(10, 1, 1.0)),
        VisitState(visit=visit(10, 2), standing=Standing.RUNNING),
        VisitState(visit=visit(10, 3)),
        VisitState(visit=visit(10, 4, device=OTHER), attempts=(put_off(),)),
    ]
    context = StatusContext(running={visit(10, 2).id: (PHONE, "shelf-1")}, labels={PHONE: "Pixel"})
    night = report.night.model_copy(update={"finished_at": None})
    return derive_status(night, states, NOW, context)


def put_off() -> AttemptResult:
    why = AttemptFailure(kind=GATE, exit_code=6, message="it is at 45 °C, and 38 are allowed")
    return AttemptResult(
        visit=visit(10, 4).id, attempt=1, identity=OTHER, host="shelf-2", fate=Fate.PUT_OFF,
        failure=why,
    )  # fmt: skip


def test_devices_with_what_they_do_and_when_they_are_done(report: NightReport) -> None:
    status = going(report)
    devices = {device.identity: device for device in status.devices}
    assert (devices[PHONE].now, devices[PHONE].detail) == (Activity.MEASURING, "mlp")
    assert (devices[PHONE].done, devices[PHONE].left, devices[PHONE].host) == (1, 2, "shelf-1")
    # Two visits of 30 s, as the one that was measured.
    assert devices[PHONE].expected_end == "2026-11-11T03:01:00+00:00"
    assert (devices[OTHER].now, devices[OTHER].host) == (Activity.GATE, "shelf-2")
    assert devices[OTHER].detail.startswith("it is at 45")
    assert status.expected_end == "2026-11-11T03:01:00+00:00"
    assert [each.standing for each in status.queue] == ["running", "waiting", "waiting"]


def test_an_expected_device_that_was_not_there_is_named(report: NightReport) -> None:
    named = visit(10, 1).model_copy(update={"device": None, "among": (), "name": "android:GONE"})
    gone = VisitState(visit=named, standing=Standing.MISSED, reason="there is no such device")
    [device] = derive_status(report.night, [gone], NOW, StatusContext()).devices
    assert (device.label, device.now, device.missed) == ("android:GONE", Activity.AWAY, 1)
    assert device.detail == "there is no such device"


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (StatusContext(quarantined={PHONE: "hot"}), (Activity.QUARANTINED, "hot")),
        (StatusContext(reserved={PHONE: "ann until 4"}), (Activity.RESERVED, "ann until 4")),
        (StatusContext(), (Activity.WAITING, "next: mlp")),
        (StatusContext(stopped=True), (Activity.STOPPED, "next: mlp")),
    ],
)
def test_why_a_device_does_nothing(
    report: NightReport, context: StatusContext, expected: tuple[Activity, str]
) -> None:
    night = report.night.model_copy(update={"finished_at": None})
    [device] = derive_status(night, [VisitState(visit=visit(10, 1))], NOW, context).devices
    assert (device.now, device.detail) == expected
    assert device.expected_end is None


def test_the_table(report: NightReport) -> None:
    text = status_text(going(report))
    assert "1 of 4 visits" in text.splitlines()[1]
    assert "measuring: mlp" in text
    assert status_text(derive_status(None, (), NOW, StatusContext())).startswith("no night")
    # A night that is over was not stopped.
    assert not derive_status(report.night, (), NOW, StatusContext(stopped=True)).stopped


def shelf_of(report: NightReport, *nows: Activity) -> Status:
    """A night on as many phones, which do this."""
    devices = tuple(
        DeviceStatus(
            identity=f"android-{i}", label=f"android:SERIAL{i:06}", host="shelf-1", now=now,
            detail="größe " * 10 if now is Activity.AWAY else "", done=1, failed=0, missed=0,
            left=2, expected_end=None,
        )
        for i, now in enumerate(nows)
    )  # fmt: skip
    return going(report).model_copy(update={"devices": devices})


def test_in_a_low_terminal_what_matters_comes_first_and_the_rest_is_counted(
    report: NightReport,
) -> None:
    last = [Activity.AWAY, Activity.GATE, Activity.IDLE]
    nows = [Activity.WAITING] * 300 + [Activity.MEASURING] * 97 + last
    status = shelf_of(report, *nows)
    assert len(status_text(status, 100).splitlines()) > 400
    for width, height in ((100, 24), (60, 24), (60, 12), (200, 50), (40, 24)):
        lines = status_text(status, width, height, "no connection").splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert lines[-1] == "no connection"
        text = "\n".join(lines)
        assert text.index("android:SERIAL000397") < text.index("android:SERIAL000398")
        shown = sum("android:SERIAL" in line for line in lines)
        assert f"{400 - shown} more devices: " in text
        assert f"{300 - max(0, shown - 99)} waiting" in " ".join(text.split())
    # In the lowest, all are counted.
    assert "400 more devices: 1 away," in status_text(status, 80, 6)
    # Where all have room, all are there in the order of their labels.
    few = shelf_of(report, Activity.IDLE, Activity.MEASURING)
    assert status_text(few, 100, 24) == status_text(few, 100)


def board(report: NightReport) -> Dashboard:
    return Dashboard(going(report), (report,), report.trends)


def test_a_file_that_is_not_etdeploys_is_left_alone(report: NightReport, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>mine")
    with pytest.raises(UsageError, match="is not a report in html"):
        write_dashboard(board(report), tmp_path)
    assert [path.name for path in tmp_path.glob("*.html")] == ["index.html"]
    with pytest.raises(UsageError, match="does not exist"):
        write_dashboard(board(report), tmp_path / "none" / "pages")


def test_a_night_with_a_strange_id_has_no_page(report: NightReport) -> None:
    odd = report.model_copy(update={"night": report.night.model_copy(update={"id": "../../x"})})
    assert list(build_pages(Dashboard(going(report), (odd,)))) == ["index.html"]
