"""A night while it goes on: the table, the dashboard's pages."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Offer, Standing, VisitState
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.report.pages import Dashboard, pages_of, write_dashboard
from etdeploy.farm.report.status import Around, DeviceNow, Now, Status, status_of, status_text
from etdeploy.farm.work.parcel import GATE
from tests.support.bench_values import make_device
from tests.support.judged_nights import OTHER, PHONE, done, run_of, visit

NOW = datetime(2026, 11, 11, 3, 0, tzinfo=timezone.utc)


def going(report: NightReport) -> Status:
    states = [
        done(10, 1, run_of(10, 1, 1.0)),
        VisitState(visit=visit(10, 2), standing=Standing.RUNNING),
        VisitState(visit=visit(10, 3)),
        VisitState(visit=visit(10, 4, device=OTHER), attempts=(put_off(),)),
    ]
    around = Around(running={visit(10, 2).id: (PHONE, "shelf-1")}, labels={PHONE: "Pixel"})
    night = report.night.model_copy(update={"finished_at": None})
    return status_of(night, states, NOW, around)


def put_off() -> AttemptResult:
    why = AttemptFailure(kind=GATE, exit_code=6, message="it is at 45 °C, and 38 are allowed")
    return AttemptResult(
        visit=visit(10, 4).id, attempt=1, identity=OTHER, host="shelf-2", fate=Fate.PUT_OFF,
        failure=why,
    )  # fmt: skip


def test_devices_with_what_they_do_and_when_they_are_done(report: NightReport) -> None:
    status = going(report)
    devices = {device.identity: device for device in status.devices}
    assert (devices[PHONE].now, devices[PHONE].detail) == (Now.MEASURING, "mlp")
    assert (devices[PHONE].done, devices[PHONE].left, devices[PHONE].host) == (1, 2, "shelf-1")
    # Two visits of 30 s, as the one that was measured.
    assert devices[PHONE].expected_end == "2026-11-11T03:01:00+00:00"
    assert (devices[OTHER].now, devices[OTHER].host) == (Now.GATE, "shelf-2")
    assert devices[OTHER].detail.startswith("it is at 45")
    assert status.expected_end == "2026-11-11T03:01:00+00:00"
    assert [each.standing for each in status.queue] == ["running", "waiting", "waiting"]


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (Around(quarantined={PHONE: "hot"}), (Now.QUARANTINED, "hot")),
        (Around(reserved={PHONE: "ann until 4"}), (Now.RESERVED, "ann until 4")),
        (Around(offers=()), (Now.AWAY, "no host offers it")),
        (Around(), (Now.WAITING, "next: mlp")),
    ],
)
def test_why_a_device_does_nothing(
    report: NightReport, around: Around, expected: tuple[Now, str]
) -> None:
    night = report.night.model_copy(update={"finished_at": None})
    [device] = status_of(night, [VisitState(visit=visit(10, 1))], NOW, around).devices
    assert (device.now, device.detail) == expected
    assert device.expected_end is None


def test_a_night_that_nobody_goes_on_with(report: NightReport) -> None:
    """Its last attempts were put off by the end of its process, and wait for no gate."""
    night = report.night.model_copy(update={"finished_at": None})
    failure = AttemptFailure(kind="interrupted", exit_code=130, message="stopped")
    stopped = put_off().model_copy(update={"failure": failure})
    states = [
        done(10, 1, run_of(10, 1, 1.0)),
        VisitState(visit=visit(10, 2), standing=Standing.RUNNING),
        VisitState(visit=visit(10, 4, device=OTHER), attempts=(stopped,)),
    ]
    running = {visit(10, 2).id: (PHONE, "shelf-1")}
    status = status_of(night, states, NOW, Around(running=running, stopped=True))
    assert {device.now for device in status.devices} == {Now.STOPPED}
    assert (status.stopped, status.expected_end) == (True, None)
    assert "stopped: etdeploy farm" in status_text(status).splitlines()[0]
    # The same while it goes on.
    status = status_of(night, states, NOW, Around(running=running))
    assert [device.now for device in status.devices] == [Now.MEASURING, Now.WAITING]
    # One that is over was not stopped.
    over = status_of(report.night, states[:1], NOW, Around(stopped=True))
    assert (over.stopped, over.devices[0].now) == (False, Now.IDLE)


def test_a_device_with_a_problem(report: NightReport) -> None:
    facts = make_device("android").facts
    offer = Offer(identity=PHONE, name="x", host="h", facts=facts, problem="unauthorised")
    night = report.night.model_copy(update={"finished_at": None})
    around = Around(offers=(offer,))
    [device] = status_of(night, [VisitState(visit=visit(10, 1))], NOW, around).devices
    assert (device.now, device.detail) == (Now.PROBLEM, "unauthorised")


def test_the_table(report: NightReport) -> None:
    text = status_text(going(report))
    assert "1 of 4 visits" in text.splitlines()[1]
    assert "measuring: mlp" in text
    assert status_text(status_of(None, (), NOW, Around())).startswith("no night")


def shelf_of(report: NightReport, *nows: Now) -> Status:
    """A night on as many phones, which do this."""
    devices = tuple(
        DeviceNow(
            identity=f"android-{i}", label=f"android:SERIAL{i:06}", host="shelf-1", now=now,
            detail="größe " * 10 if now is Now.PROBLEM else "", done=1, failed=0, missed=0, left=2,
            expected_end=None,
        )
        for i, now in enumerate(nows)
    )  # fmt: skip
    return going(report).model_copy(update={"devices": devices})


def test_in_a_low_terminal_what_matters_comes_first_and_the_rest_is_counted(
    report: NightReport,
) -> None:
    nows = [Now.WAITING] * 300 + [Now.MEASURING] * 97 + [Now.PROBLEM, Now.AWAY, Now.IDLE]
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
    assert "400 more devices: 1 " in status_text(status, 80, 6)
    # Where all have room, all are there in the order of their labels.
    few = shelf_of(report, Now.IDLE, Now.MEASURING)
    assert status_text(few, 100, 24) == status_text(few, 100)


def board(report: NightReport) -> Dashboard:
    return Dashboard(going(report), (report,), report.trends)


def test_the_dashboard_is_static_pages(report: NightReport, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    index = write_dashboard(board(report), folder)
    assert write_dashboard(board(report), folder) == index
    names = ["history.html", "index.html", "night-night-10.html"]
    assert sorted(path.name for path in folder.iterdir()) == names
    text = index.read_text()
    assert 'href="history.html"' in text
    assert "measuring" in text


def test_a_file_that_is_not_etdeploys_is_left_alone(report: NightReport, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>mine")
    with pytest.raises(UsageError, match="is not a report in html"):
        write_dashboard(board(report), tmp_path)
    assert [path.name for path in tmp_path.glob("*.html")] == ["index.html"]
    with pytest.raises(UsageError, match="does not exist"):
        write_dashboard(board(report), tmp_path / "none" / "pages")


def test_a_night_with_a_strange_id_has_no_page(report: NightReport) -> None:
    odd = report.model_copy(update={"night": report.night.model_copy(update={"id": "../../x"})})
    assert list(pages_of(Dashboard(going(report), (odd,)))) == ["index.html"]
