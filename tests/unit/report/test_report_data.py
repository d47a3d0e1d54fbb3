"""Names of runs, and what is read beside a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.report_data import distinct_names, load_plan
from tests.support.bench_values import make_device, make_record, make_run
from tests.support.report_values import make_plan


def _run(
    recipe: str,
    device: str = "host",
    time: str = "08:00:00",
    run_id: str = "id",
    day: str = "2026-11-21",
) -> StoredRun:
    record = make_record()
    return make_run(
        recipe=record.recipe.model_copy(update={"name": recipe}),
        device=make_device(name=device),
        started_at=f"{day}T{time}+00:00",
        run_id=run_id,
    )


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([_run("a"), _run("b")], ("a", "b")),
        ([_run("a"), _run("a", "qemu")], ("a on host", "a on qemu")),
        (
            [_run("a"), _run("a", time="09:30:00")],
            ("a 08:00:00", "a 09:30:00"),
        ),
        (
            [_run("a"), _run("a", day="2026-11-22")],
            ("a 2026-11-21 08:00:00", "a 2026-11-22 08:00:00"),
        ),
        ([_run("a", run_id="x"), _run("a", run_id="y")], ("x", "y")),
        ([_run("a"), _run("a")], ("1 id", "2 id")),
    ],
)
def test_a_name_is_as_short_as_tells_the_runs_apart(
    runs: list[StoredRun], expected: tuple[str, ...]
) -> None:
    assert distinct_names(runs) == expected


def test_the_plan_is_read_from_the_run_s_folder(tmp_path: Path) -> None:
    make_plan().save(tmp_path / "plan.json")
    run = StoredRun(tmp_path, make_record(files={"plan": "plan.json"}))
    assert load_plan(run) == (make_plan(), ())


@pytest.mark.parametrize(
    ("files", "content", "why"),
    [
        ({}, None, "the run has no plan"),
        ({"plan": "plan.json"}, None, "plan.json is not in the run's folder"),
        ({"plan": "plan.json"}, '{"target": 1}', "plan.json is not a plan of this release"),
    ],
)
def test_a_missing_plan_has_a_reason(
    tmp_path: Path, files: dict[str, str], content: str | None, why: str
) -> None:
    if content:
        (tmp_path / "plan.json").write_text(content)
    plan, reasons = load_plan(StoredRun(tmp_path, make_record(files=files)))
    assert plan is None
    assert reasons[0].endswith(f": {why}.")


def test_a_plan_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    make_plan().save(tmp_path / "elsewhere.json")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plan.json").symlink_to(tmp_path / "elsewhere.json")
    plan, [reason] = load_plan(StoredRun(folder, make_record(files={"plan": "plan.json"})))
    assert plan is None
    assert "leads out of" in reason
