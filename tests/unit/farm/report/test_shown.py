"""A night as Markdown, JUnit XML and a page: what names contain stays text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.farm.report.forms import (
    MOST_CHARACTERS,
    RequestedReports,
    junit,
    markdown,
    require_free,
    write,
)
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.report.pages import night_page
from etdeploy.report.formats import JUNIT_MARK
from etdeploy.report.html import render

PHONE_LABEL = "android:S1 (Test CPU)"
# What junit-10.xsd, the schema of Jenkins' xUnit plug-in, has; it refuses anything else.
_ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
_REQUIRED = {
    "testsuite": {"name", "tests", "failures", "errors"},
    "testcase": {"name"},
}
_CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "skipped", "system-out"},
}


def read(report: NightReport) -> Xml.Element:
    root = Xml.fromstring(junit(report).encode())  # noqa: S314 - written here
    for element in root.iter():
        assert set(element.keys()) <= _ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= _CHILDREN.get(element.tag, set())
        assert _REQUIRED.get(element.tag, set()) <= set(element.keys())
        for key in ("tests", "failures", "errors", "skipped"):
            assert element.get(key, "0").isdecimal()
        assert re.fullmatch(r"\d+\.\d{3}", element.get("time", "0.000"))
        assert len(element.findall("failure")) + len(element.findall("skipped")) <= 1
    for suite in root:
        assert int(suite.get("tests", "")) == len(suite)
        for key, tag in (("failures", "failure"), ("skipped", "skipped")):
            assert int(suite.get(key, "")) == len(suite.findall(f"testcase/{tag}"))
    return root


def test_junit_has_a_suite_for_each_device_and_a_case_for_each_recipe(report: NightReport) -> None:
    root = read(report)
    assert sorted(suite.get("name") or "" for suite in root) == ["Old phone", PHONE_LABEL]
    cases = {(c.get("classname"), c.get("name")): c for c in root.iter("testcase")}
    assert set(cases) == {
        (PHONE_LABEL, "mlp"), (PHONE_LABEL, "conv"), ("Old phone", "conv"), ("Old phone", "big"),
        ("Old phone", "mlp"),
    }  # fmt: skip
    regression = cases[PHONE_LABEL, "mlp"].find("failure")
    assert regression is not None
    assert regression.get("type") == "regression"
    assert "etdeploy farm bisect" in (regression.text or "")
    assert cases["Old phone", "mlp"].find("skipped") is not None
    assert (root.get("tests"), root.get("failures")) == ("5", "4")
    assert [suite.get("skipped") for suite in root] == ["0", "1"]
    assert cases[PHONE_LABEL, "mlp"].get("time") == "90.000"


def test_names_stay_text(evil: NightReport) -> None:
    names = [case.get("name") or "" for case in read(evil).iter("testcase")]
    assert any("<script>alert(1)</script>" in name for name in names)
    assert not any("\x07" in name for name in names)
    assert not any(word in markdown(evil) for word in ("<script>", "@team"))
    assert "<script>alert(1)" not in render(night_page(evil))


def test_markdown_is_short_and_the_worst_comes_first(report: NightReport) -> None:
    text = markdown(report)
    assert "🔴 regressed" in text
    assert text.count("🔴") == 2  # the verdict, and the quarantined device
    assert text.index("etdeploy farm bisect") < text.index("crashed at") < text.index("<details>")


def test_markdown_of_thousands_has_a_bound(report: NightReport) -> None:
    many = report.model_copy(
        update={
            "verdicts": report.verdicts * 3000,
            "failures": tuple(
                cause.model_copy(update={"message": cause.message * 500})
                for cause in report.failures * 2000
            ),
            "missed": report.missed * 2000,
            "devices": report.devices * 2000,
        }
    )
    text = markdown(many)
    assert len(text) <= MOST_CHARACTERS
    assert "more worse pairs" in text


@pytest.mark.parametrize(
    "odd", ["a|b\nc", "x" * 10_240, "</code></details>", "\r\n| a |", "\x1b[31m"]
)
def test_a_name_stays_in_its_cell(report: NightReport, odd: str) -> None:
    verdict = report.verdicts[-1].model_copy(update={"recipe": odd, "kind": "improved"})
    text = markdown(report.model_copy(update={"verdicts": (verdict,)}))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6, 9, 10}  # causes, verdicts, devices
    assert text.count("</details>") == 2
    assert len(text) < 10_000


def test_what_no_file_can_have_is_replaced(evil: NightReport, tmp_path: Path) -> None:
    wanted = RequestedReports(tmp_path / "n.html", tmp_path / "n.md", tmp_path / "n.xml")
    assert len(write(evil, wanted)) == 3
    assert "\N{REPLACEMENT CHARACTER}" in (tmp_path / "n.xml").read_text(encoding="utf-8")


def test_files_are_written_over_earlier_ones_only(report: NightReport, tmp_path: Path) -> None:
    wanted = RequestedReports(tmp_path / "n.html", tmp_path / "n.md", tmp_path / "n.xml")
    assert write(report, wanted) == write(report, wanted)
    assert (tmp_path / "n.xml").read_text().startswith(JUNIT_MARK)
    (tmp_path / "mine.xml").write_text("<?xml version='1.0'?><testsuites name='mine'/>")
    for wanted, form in (
        (RequestedReports(junit=tmp_path / "mine.xml"), "JUnit XML"),
        (RequestedReports(markdown=tmp_path / "n.html"), "Markdown"),
    ):
        with pytest.raises(UsageError, match=f"is not .* {form}"):
            require_free(wanted)
