"""What the page about a run shows, and what of it a run may lack."""

from __future__ import annotations

import math
from typing import Any

import pytest

from etdeploy.bench.records.conditions import CooldownWait, Disturbance, DisturbanceKind
from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.html.blocks import (
    Facts,
    Figure,
    Folded,
    Operators,
    Page,
    Table,
    Text,
    all_blocks,
)
from etdeploy.report.html.single import single_page
from etdeploy.report.report_data import Material
from tests.support.bench_values import (
    FOLDER,
    SIMULATED,
    UNCOMPARED,
    make_check,
    make_loss,
    make_program,
    make_run,
)
from tests.support.report_values import make_material, make_profile
from tests.support.text_values import TRACED, make_text_record, make_text_workload


def _figures(page: Page) -> list[str]:
    return [block.key for block in all_blocks(page.sections) if isinstance(block, Figure)]


def _bare(*arguments: Any, **changes: Any) -> Page:
    return single_page(Material(make_run(*arguments, **changes), "mlp", None, (), ("No plan.",),
                                ("No profile.",)))  # fmt: skip


def test_a_full_run_shows_everything() -> None:
    page = single_page(make_material())
    assert [section.key for section in page.sections] == [
        "latency", "starts", "profile", "outputs", "threads", "sustained", "memory", "device",
        "options", "provenance", "record",
    ]  # fmt: skip
    assert _figures(page) == [
        "plot-latency", "plot-starts", "plot-shares", "plot-modules", "plot-threads",
        "plot-sustained", "plot-memory", "plot-device",
    ]  # fmt: skip
    assert [b.key for b in all_blocks(page.sections) if isinstance(b, Operators)] == ["operators"]
    assert [card.label for card in page.cards] == [
        "latency", "spread between starts", "load", "first inference", "peak memory", "outputs",
        "device",
    ]  # fmt: skip


def test_what_must_not_be_missed_stands_at_the_top() -> None:
    page = single_page(make_material())
    assert [badge.text for badge in page.badges] == ["throttled", "outputs correct"]
    assert page.notices == (
        Text("A third of the time is spent in layer norms on CPU kernels.", "info", "Bottleneck."),
        Text("throttled in start 4 of 5: The device lowered its frequency.", "warn", "Disturbed:"),
        Text("The screen was on.", "info"),
    )


def test_a_disturbance_is_one_notice_and_many_notes_are_folded() -> None:
    record = make_material().record
    disturbed = Disturbance(kind=DisturbanceKind.BUSY, text="Other programs ran.")
    starts = tuple(
        start.model_copy(update={"disturbances": (disturbed,)}) for start in record.workload.runs
    )
    notes = tuple(f"Note {number}." for number in range(10))
    workload = record.workload.model_copy(update={"runs": starts})
    changes = {"workload": workload, "notes": notes, "disturbances": (disturbed,)}
    page = single_page(Material(StoredRun(FOLDER, record.model_copy(update=changes)), "mlp"))
    assert page.notices == (
        Text("busy in all starts: Other programs ran.", "warn", "Disturbed:"),
        Folded("10 notes", tuple(Text(note, "info") for note in notes)),
    )


def test_a_run_without_profile_and_plan_says_why() -> None:
    page = _bare()
    texts = [block.text for block in all_blocks(page.sections) if isinstance(block, Text)]
    assert texts == ["No profile.", "No plan."]
    assert _figures(page) == ["plot-latency", "plot-starts"]


def test_waits_for_a_cool_device_stand_with_the_starts() -> None:
    run = make_material(interleaved_with="other-run")
    record = run.record
    waits = [
        CooldownWait(sensor="cpu", from_celsius=50, to_celsius=to, waited_s=90, reached=to < 40)
        for to in (36, 44)
    ]
    starts = [
        start.model_copy(update={"cooldown": wait})
        for start, wait in zip(record.workload.runs, (*waits, None, None, None), strict=True)
    ]
    workload = record.workload.model_copy(update={"runs": tuple(starts)})
    run = Material(StoredRun(FOLDER, record.model_copy(update={"workload": workload})), "mlp")
    blocks = all_blocks(single_page(run).sections)
    [table] = [b for b in blocks if isinstance(b, Table) and b.label == "Starts"]
    cells = [row[table.columns.index("cooled")].text for row in table.rows]
    assert cells == ["90 s to 36 °C", "90 s to 44 °C, still hot", "–", "–", "–"]
    [facts] = [b for b in blocks if isinstance(b, Facts) and b.pairs[0][0] == "Run"]
    assert dict(facts.pairs)["Took turns with"].text == "other-run"


def test_one_start_cannot_show_the_spread_between_starts() -> None:
    [card] = [card for card in _bare().cards if card.label == "spread between starts"]
    assert card.value == "unknown"
    assert card.lines[0].endswith("within a start")


def test_a_simulated_run_shows_no_time() -> None:
    page = _bare(simulated=SIMULATED)
    assert [card.label for card in page.cards] == ["latency", "outputs", "device"]
    assert page.cards[0].value == "simulated"
    assert _figures(page) == []
    assert page.badges[0].text == "simulated"


@pytest.mark.parametrize(
    ("outputs", "value", "badge"),
    [
        ((make_check(),), "correct", "outputs correct"),
        ((make_check(within_tolerance=False), make_check()), "WRONG", "outputs WRONG"),
        ((make_check(), UNCOMPARED), "not all compared", "outputs not all compared"),
        ((), "not checked", "outputs not checked"),
    ],
)
def test_the_verdict_on_the_outputs(outputs: Any, value: str, badge: str) -> None:
    page = _bare(outputs=outputs)
    [card] = [card for card in page.cards if card.label == "outputs"]
    assert card.value == value
    assert page.badges[-1].text == badge


@pytest.mark.parametrize("samples", [(0.0, 0.0), (math.nan,), (1.0,), (1.0, math.inf, 2.0)])
def test_strange_times_are_no_error(samples: tuple[float, ...]) -> None:
    assert _figures(_bare(samples)) == ["plot-latency", "plot-starts"]


def test_generated_text_has_its_points_and_rates() -> None:
    page = single_page(Material(StoredRun(FOLDER, make_text_record()), "tiny"))
    assert [section.key for section in page.sections][:3] == ["tokens", "latency", "starts"]
    assert [card.label for card in page.cards][:2] == ["decode", "prefill"]
    points = next(block for block in all_blocks(page.sections) if isinstance(block, Table))
    assert points.label == "Tokens"
    assert [cell.text for cell in points.rows[0]][:3] == ["8", "4", "0"]
    texts = [b.text for b in all_blocks(page.sections) if isinstance(b, Text)]
    assert any(text.startswith("first token: from the prompt's token ids") for text in texts)
    figures = [b for b in all_blocks(page.sections) if isinstance(b, Figure)]
    assert [figure.label for figure in figures][:2] == [
        "Histogram of the time per token of 18 tokens", "The time per token of each token in "
        "3 starts",
    ]  # fmt: skip


def test_each_method_that_generated_text_has_a_profile_of_its_own() -> None:
    record = make_text_record(workload=make_text_workload(methods=TRACED))
    profiles = tuple(make_profile(60, method=each.method, text=each) for each in TRACED)
    page = single_page(Material(StoredRun(FOLDER, record), "tiny", None, profiles))
    assert [key for key in _figures(page) if "latency" not in key and "starts" not in key] == [
        "plot-shares", "plot-modules", "plot-shares-prefill", "plot-modules-prefill",
    ]  # fmt: skip
    texts = [block.text for block in all_blocks(page.sections) if isinstance(block, Text)]
    assert any(text.startswith("Mean of 3 calls at positions 8 to 10, ") for text in texts)
    assert any(text.startswith("Mean of 1 call at positions 0 to 7, ") for text in texts)


def test_a_high_loss_of_quantisation_is_a_badge() -> None:
    losses = (make_loss(cosine_similarity=0.83),)
    page = _bare(program=make_program(quantization_loss=losses))
    assert [badge.text for badge in page.badges] == ["high quantisation loss", "outputs correct"]
    texts = [block.text for block in all_blocks(page.sections) if isinstance(block, Text)]
    assert any(text.startswith("QUANTISATION LOSS: scores") for text in texts)
    low = _bare(program=make_program(quantization_loss=(make_loss(),)))
    assert [badge.text for badge in low.badges] == ["outputs correct"]
