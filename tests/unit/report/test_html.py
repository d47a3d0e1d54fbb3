"""The page as text: complete, closed to scripts, and the same for the same run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest

from etdeploy.report.formats import Format, render_report
from etdeploy.report.html import safe_json
from etdeploy.report.report_data import Report, ReportData
from tests.support.report_values import (
    HOSTILE,
    make_profile,
    make_report_data,
    renamed,
)


class _Elements(HTMLParser):
    """The scripts of a page by their types, and every address that it could load."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.addresses: list[str] = []
        self.elements: list[str] = []
        self._script: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.addresses += [str(v) for k, v in attrs if k in ("src", "href", "action", "srcset")]
        self._script = dict(attrs) if tag == "script" else self._script
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script


def _parsed(text: str) -> _Elements:
    parser = _Elements()
    parser.feed(text)
    return parser


def _hostile() -> Report:
    operator = make_profile().operators[0].model_copy(
        update={"name": HOSTILE, "module": HOSTILE, "not_delegated": HOSTILE}
    )  # fmt: skip
    run = renamed(make_report_data(notes=(HOSTILE,)), HOSTILE)
    profile = make_profile(operators=(operator,), bottleneck=HOSTILE, shares={HOSTILE: 0.5})
    return Report((ReportData(run.run, HOSTILE, run.plan, (profile,)),))


def test_nothing_is_loaded_and_every_script_is_allowed_by_its_digest() -> None:
    text = render_report(Report((make_report_data(),)), Format.HTML)
    assert text == render_report(Report((make_report_data(),)), Format.HTML)
    page = _parsed(text)
    assert [address for address in page.addresses if not address.startswith("#")] == []
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy
    assert "unsafe-eval" not in policy
    [own] = [data for attributes, data in page.scripts if not attributes]
    [packed] = [data for attributes, data in page.scripts if attributes.get("id") == "plots"]
    for script in (own.encode(), gzip.decompress(base64.b64decode(packed))):
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        assert f"'sha256-{digest}'" in policy.replace("&#39;", "'")


def test_no_name_becomes_markup() -> None:
    hostile, plain = (
        _parsed(render_report(report, Format.HTML))
        for report in (_hostile(), Report((make_report_data(),)))
    )
    # Both pages have the same kinds of elements, and as many scripts.
    assert set(hostile.elements) <= set(plain.elements)
    assert hostile.elements.count("script") == plain.elements.count("script")
    [record] = [d for attributes, d in hostile.scripts if attributes.get("id") == "record-0"]
    assert json.loads(record)["recipe"]["name"] == HOSTILE


def test_a_page_with_five_thousand_operators_is_small() -> None:
    run = make_report_data()
    run = ReportData(run.run, run.name, run.plan, (make_profile(5_000),))
    text = render_report(Report((run,)), Format.HTML)
    assert run.profile
    assert len(run.profile.operators) >= 4_900
    assert len(text.encode()) < 6_000_000


@pytest.mark.parametrize("text", ["</script>", "<!--", "a & b", "\u2028", "\u2029", HOSTILE])
def test_json_cannot_end_its_element(text: str) -> None:
    written = safe_json({"name": text, "nan": [math.nan, (math.inf, 1.5)]})
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == {"name": text, "nan": [None, [None, 1.5]]}
