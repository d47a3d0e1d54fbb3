"""What the history knows of a record."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind, Spread, Start
from etdeploy.bench.records.record import Inference, RunRecord
from etdeploy.bench.statistics import summarize
from etdeploy.devices.base import CpuCluster, DeviceState
from etdeploy.history import entry as module
from etdeploy.history.entry import entry_from, find_commit_links, utc, web_address
from tests.support.bench_values import (
    FOLDER,
    UNCOMPARED,
    make_check,
    make_device,
    make_loss,
    make_program,
    make_record,
)

HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="the cores slowed down to 1.1 GHz")


def start(*disturbances: Disturbance) -> Start:
    return Start(
        started_at="2026-11-21T08:44:49+00:00", warmup=5, steady=True, load_ms=8.0, verify_ms=None,
        first_inference_ms=2.5, samples=5, median_ms=1.1, mean_ms=1.1, stddev_ms=0.1,
        disturbances=disturbances,
    )  # fmt: skip


def with_starts(*runs: Start, **changes: Any) -> RunRecord:
    workload = make_record().workload.model_copy(
        update={"runs": runs, "spread": Spread(within_percent=2.0, between_percent=4.0)}
    )
    return make_record(workload=workload, **changes)


def test_an_undisturbed_run() -> None:
    entry, _ = entry_from(with_starts(start(), start(), start()))
    assert (entry.disturbed, entry.fit, entry.starts, entry.spread_percent) == ("", True, 3, 4.0)
    assert entry.metrics == {
        "latency_ms": 1.1, "first_inference_ms": 2.5, "load_ms": 8.35713,
        "peak_rss_bytes": 32_700_000.0, "program_bytes": 5520.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("starts", "whole", "text"),
    [
        ((start(HOT), start(), start()), (), ""),
        ((start(HOT), start(HOT), start()), (), HOT.text),
        ((start(),), (HOT, HOT), f"{HOT.text} {HOT.text}"),
    ],
)
def test_a_run_is_disturbed_if_most_starts_are(
    starts: tuple[Start, ...], whole: tuple[Disturbance, ...], text: str
) -> None:
    entry, _ = entry_from(with_starts(*starts, disturbances=whole))
    assert (entry.disturbed, entry.fit) == (text, not text)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ((make_check(),), True),
        ((make_check(), make_check(within_tolerance=False)), False),
        ((make_check(), UNCOMPARED), True),
        ((), None),
    ],
)
def test_outputs(outputs: Any, expected: bool | None) -> None:
    entry, _ = entry_from(make_record(outputs=outputs))
    assert entry.outputs_ok is expected
    assert entry.fit is (expected is not False)


def test_sizes_have_numbers_of_their_own() -> None:
    plain = make_record().workload
    assert isinstance(plain, Inference)
    from etdeploy.bench.records.record import SizeRecord

    sizes = tuple(
        SizeRecord(
            name=name, sizes={"x": 1}, shapes={}, latency_ms=summarize([ms]),
            first_inference_ms=ms, peak_rss_bytes=None, outputs=(), runs=plain.runs,
            spread=plain.spread,
        )
        for name, ms in (("short", 1.0), ("long", 7.0))
    )  # fmt: skip
    entry, _ = entry_from(make_record(sizes=sizes))
    assert entry.metrics["latency_ms@long"] == 7.0
    assert "latency_ms@short" not in entry.metrics


def test_the_loss_of_quantization_is_followed_for_each_output() -> None:
    losses = (make_loss(sqnr_db=20.0), make_loss(name="exact", sqnr_db=None))
    entry, _ = entry_from(make_record(program=make_program(quantization_loss=losses)))
    assert entry.metrics["quantization_noise@scores"] == pytest.approx(0.1)
    assert "quantization_noise@exact" not in entry.metrics


def test_a_number_that_is_none_is_left_out() -> None:
    entry, _ = entry_from(make_record(load_ms=float("nan"), peak_rss_bytes=None))
    assert set(entry.metrics) == {"latency_ms", "first_inference_ms", "program_bytes"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2026-11-21T08:44:49+00:00", "2026-11-21T08:44:49+00:00"),
        ("2026-11-21T08:44:49Z", "2026-11-21T08:44:49+00:00"),
        ("2026-11-21T09:44:49.250+01:00", "2026-11-21T08:44:49+00:00"),
        ("2026-11-21T08:44:49", "2026-11-21T08:44:49+00:00"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_in_one_form(written: str, expected: str) -> None:
    assert utc(written) == expected


def test_the_device_and_its_settings_are_known() -> None:
    before = DeviceState(
        clusters=(
            CpuCluster(cpus=(0,), governor="walt"),
            CpuCluster(cpus=(4,), governor="performance"),
        ),
        power_saving=False, usable_cpus=(0, 1, 4), cpu_quota=1.5,
    )  # fmt: skip
    device = make_device("android", before, os="Android 16", fingerprint="maker/BP2A.1")
    entry, _ = entry_from(make_record(device=device, versions={"torch": "2.13.0"}))
    assert entry.versions == {
        "torch": "2.13.0", "system": "Android 16", "system build": "maker/BP2A.1",
        "frequency governor": "performance, walt", "power saving": "off",
        "usable processors": "3", "processor quota": "1.5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("git@github.com:team/models.git\n", "https://github.com/team/models"),
        (
            "ssh://git@git.example.org:2222/group/sub/models.git",
            "https://git.example.org/group/sub/models",
        ),
        ("https://anna:ghp_secret@git.example.org:8443/m.git/", "https://git.example.org:8443/m"),
        ("https://x-access-token@github.com/team/models", "https://github.com/team/models"),
        ("http://git.example.org/m?private_token=secret#x", "http://git.example.org/m"),
        ('https://git.example.org/a"><b>/{id}', "https://git.example.org/a%22%3E%3Cb%3E/%7Bid%7D"),
        ("git://git.example.org/m", "https://git.example.org/m"),
        # A name of ~/.ssh/config, folders, a drive, and nothing.
        ("git@work:team/models.git", ""),
        ("/srv/git/models.git", ""),
        ("../models", ""),
        ("C:/git/models", ""),
        ("file:///srv/git/models", ""),
        ("javascript:alert(1)", ""),
        ("http://[::1]:x/m", ""),
        ("https://git.example.org/", ""),
        ("", ""),
    ],
)
def test_the_page_of_a_repository(remote: str, page: str) -> None:
    assert web_address(remote) == page


@pytest.mark.parametrize(
    ("remote", "commit", "compare"),
    [
        ("git@github.com:t/m.git", "https://github.com/t/m/commit/{id}",
         "https://github.com/t/m/compare/{old}...{new}"),
        ("git@gitlab.example.org:t/m.git", "https://gitlab.example.org/t/m/-/commit/{id}",
         "https://gitlab.example.org/t/m/-/compare/{old}...{new}"),
        ("git@bitbucket.org:t/m.git", "https://bitbucket.org/t/m/commits/{id}",
         "https://bitbucket.org/t/m/branches/compare/{new}..{old}"),
    ],
)  # fmt: skip
def test_commits_are_linked_if_the_repository_has_them(
    remote: str, commit: str, compare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = "a" * 40
    asked: list[str] = []

    def git(_folder: object, *arguments: str) -> str:
        if arguments[0] == "remote":
            return f"{remote}\n"
        asked.extend(arguments[3:])
        return f"{known}\n"

    monkeypatch.setattr(module, "run_git", git)
    links = find_commit_links(FOLDER, {known, "b" * 40, "--all", "main"})
    assert asked == [known, "b" * 40]
    assert (links.commit, links.compare) == (commit, compare)
    assert links.known == {known}


def test_no_commit_is_linked_outside_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_git", lambda *_: None)
    links = find_commit_links(FOLDER, {"a" * 40})
    assert (links.commit, links.compare, links.known) == ("", "", frozenset())
