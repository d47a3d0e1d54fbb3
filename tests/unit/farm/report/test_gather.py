"""What a night's report has."""

from __future__ import annotations

from etdeploy.farm.report.forms import night_text
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.verdicts.pair import VerdictKind
from tests.support.judged_nights import OTHER, PHONE


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
