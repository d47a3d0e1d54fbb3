"""What a night's report has."""

from __future__ import annotations

from etdeploy.farm.model import Standing, Visit, VisitState
from etdeploy.farm.report.end import summarize
from etdeploy.farm.report.forms import junit, markdown, night_text
from etdeploy.farm.report.model import NightReport, assemble_report
from etdeploy.farm.report.pages import night_page
from etdeploy.farm.verdicts.pair import Gap, VerdictKind
from etdeploy.history.alerts import Alert, group_alerts
from etdeploy.report.html import render
from tests.support.judged_nights import OTHER, PHONE, done, failed, missed, run_of


def test_failures_of_one_cause_are_one(report: NightReport) -> None:
    assert [(cause.message, len(cause.places)) for cause in report.failures] == [
        ("crashed at 0xdeadbeef", 2),
        ("no room", 1),
    ]
    assert report.failures[0].remedy == "etdeploy run"
    assert [place.recipe for place in report.missed[0].places] == ["mlp"]


def test_totals_and_exit_code(report: NightReport) -> None:
    totals = report.totals
    assert (totals.visits, totals.done, totals.failed, totals.missed) == (7, 3, 3, 1)
    assert totals.regressed == 1
    assert report.headline.split(", ") == ["1 regressed", "3 failed", "1 missed"]
    assert report.exit_code == 1
    without = report.model_copy(update={"verdicts": ()})
    assert without.exit_code == 7
    assert without.model_copy(update={"failures": ()}).exit_code == 0


def test_wrong_outputs_alone_are_in_the_headline(report: NightReport) -> None:
    crash = report.failures[0]
    wrong = crash.model_copy(update={"kind": "outputs differ", "exit_code": 8})
    totals = report.totals.model_copy(update={"failed": 0, "missed": 0, "regressed": 0})
    alone = report.model_copy(update={"verdicts": (), "failures": (wrong,), "totals": totals})
    assert (alone.headline, alone.exit_code) == ("2 with wrong outputs", 8)


def test_a_night_of_which_nothing_could_be_judged_is_not_good(report: NightReport) -> None:
    plain = {"kind": VerdictKind.NOT_JUDGED, "reason": "all were hot"}
    verdict = report.verdicts[0].model_copy(update=plain)
    totals = report.totals.model_copy(
        update={"failed": 0, "missed": 0, "regressed": 0, "not_judged": 1}
    )
    night = report.model_copy(update={"verdicts": (verdict,), "failures": (), "totals": totals})
    assert (night.exit_code, night.headline) == (0, "1 not judged")
    stuck = verdict.model_copy(update={"blocked": True})
    night = night.model_copy(update={"verdicts": (stuck,)})
    assert (night.exit_code, night.blocked) == (6, "all were hot")
    assert night.headline.endswith(", 1 not judged")
    judged = verdict.model_copy(update={"kind": VerdictKind.NO_DIFFERENCE})
    assert night.model_copy(update={"verdicts": (stuck, judged)}).exit_code == 0


def test_coverage_counts_every_expected_pair_once(report: NightReport) -> None:
    named = Visit(id="n-1", recipe="mlp", group="g", device=None, among=(), name="android:GONE")
    floating = [
        Visit(id=f"n-{i}", recipe="bert", group="any", device=None, among=(PHONE, OTHER), repeat=i)
        for i in (2, 3)
    ]
    away = [missed(10, i, f"unplugged since 02:1{i}", device="android-S9") for i in (4, 5)]
    states = [
        VisitState(visit=named, standing=Standing.MISSED, reason="there is no device"),
        *(VisitState(visit=v, standing=Standing.MISSED, reason="closed") for v in floating),
        *away,
        missed(10, 6, "reserved by ann", device=OTHER),
        failed(10, 7, device=PHONE, recipe="conv"),
        missed(10, 8, "closed", device=PHONE),
    ]
    [verdict, *_] = report.verdicts
    hot = verdict.model_copy(
        update={"recipe": "hot", "kind": VerdictKind.NOT_JUDGED, "gap": Gap.DISTURBED}
    )
    found = assemble_report(report.night, states, [verdict, hot], required_percent=20)
    assert found.coverage.text == (
        "1 of 7 pairs judged; 1 disturbed; 1 failed; 2 missed; 2 expected devices absent"
    )
    assert found.coverage.absent == ("android-S9", "android:GONE")
    assert found.summary.endswith(f"; {found.coverage.text}")
    assert "that is 14 % of them, and 20 % are required" in found.uncovered
    assert found.exit_code == 1  # a regression comes first
    fine = verdict.model_copy(update={"kind": VerdictKind.NO_DIFFERENCE})
    totals = found.totals.model_copy(update={"done": 1})
    calm = found.model_copy(update={"verdicts": (fine,), "failures": (), "totals": totals})
    assert (calm.exit_code, calm.tone) == (6, "bad")
    assert calm.model_copy(update={"required_percent": 14.0}).exit_code == 0
    assert calm.model_copy(update={"required_percent": 14.0}).tone == "warn"


def test_a_night_that_judged_nothing_is_good_only_for_want_of_nights(report: NightReport) -> None:
    [verdict, *_] = report.verdicts
    for gap, blocked, code in (
        (Gap.NEW, False, 0), (Gap.SIMULATED, False, 0), (Gap.DISTURBED, True, 6),
        (Gap.DISTURBED, False, 0), (Gap.BASELINE, True, 6), (Gap.OTHER, False, 6),
    ):  # fmt: skip
        changes = {"kind": VerdictKind.NOT_JUDGED, "gap": gap, "blocked": blocked}
        one = verdict.model_copy(update=changes)
        night = assemble_report(report.night, [done(10, 1, run_of(10, 1, 1.0))], [one])
        assert (night.exit_code, night.tone != "good") == (code, True)
        assert night.summary.startswith("nothing could be judged, 1 not judged; 0 of 1 pair ")


def test_absent_devices_are_in_every_form_by_name(report: NightReport) -> None:
    gone = Visit(id="n-1", recipe="mlp", group="g", device=None, among=(), name="android:GONE")
    state = VisitState(visit=gone, standing=Standing.MISSED, reason="there is no such device")
    found = assemble_report(report.night, [state])
    text = night_text(found)
    assert "0 of 1 pair judged; 1 expected device absent" in text.splitlines()[0]
    assert "absent: there is no such device" in text
    for form in (markdown(found), junit(found), render(night_page(found))):
        assert "android" in form
        assert "GONE" in form
        assert "1 expected device absent" in form or "<skipped" in form
    document = summarize(found, [])
    assert document["absent"] == [
        {"device": "android:GONE", "identity": None, "reason": "there is no such device"}
    ]
    assert document["coverage"]["percent"] == 0.0
    assert document["headline"].endswith("1 expected device absent")


def test_an_alert_of_a_device_that_was_not_there_is_with_its_case(report: NightReport) -> None:
    gone = Visit(id="n-1", recipe="mlp", group="g", device=None, among=(), name="android:GONE")
    state = VisitState(visit=gone, standing=Standing.MISSED, reason="it was not there")
    alert = Alert(
        id=3, farm="shelf", series="s", metric="latency_ms", night="n0", recipe="mlp",
        opened_at="2026-11-01T00:00:00+00:00", device="android:GONE (Pixel 9)", identity="g",
    )  # fmt: skip
    removed = alert.model_copy(update={"recipe": "removed", "device": "other", "id": 4})
    groups = group_alerts([alert, removed])
    night = assemble_report(report.night, [state]).model_copy(update={"alerts": groups})
    text = junit(night)
    assert text.count("<testcase") == 2
    assert text.count("<testsuite ") == 2
    assert "alert 3: open" in text
    assert '<skipped message="not measured"' in text


def test_devices_with_health_and_quarantine(report: NightReport) -> None:
    devices = {device.identity: device for device in report.devices}
    assert devices[PHONE].label == "android:S1 (Test CPU)"
    assert (devices[PHONE].done, devices[PHONE].failed) == (3, 1)
    assert devices[PHONE].warmest_celsius == 31.5
    assert devices[OTHER].quarantined == "it is hot"


def test_the_text_has_verdicts_first(report: NightReport) -> None:
    text = night_text(report)
    order = [text.index(part) for part in ("REGRESSED", "etdeploy farm bisect", "2 visits failed",
                                           "1 visit missed", "it is hot")]  # fmt: skip
    assert order == sorted(order)
    assert all(fact in text for fact in ("80 %", "32 °C", "2.0 GB"))
