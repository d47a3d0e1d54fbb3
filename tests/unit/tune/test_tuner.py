"""A whole search on a simulated device: limits, interruptions, budgets, and its result."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from etdeploy.compare.model import Verdict
from etdeploy.core.errors import (
    DeviceError,
    Interrupted,
    LimitError,
    MismatchError,
    RecipeError,
    UsageError,
)
from etdeploy.core.files.delivery import ResultFile
from etdeploy.recipe.load import load_recipe
from etdeploy.tune.journal import Journal
from etdeploy.tune.metrics import parse_limits
from etdeploy.tune.page import tune_page, tune_text
from etdeploy.tune.recipe_file import TunedRecipe, free_name, recipe_file, write_recipe
from etdeploy.tune.result import TuneResult, require_result, tune_result
from etdeploy.tune.run import common_best, fixed_keys, make_goal, measure_for_common, thread_counts
from etdeploy.tune.search import EndReason
from etdeploy.tune.space import derive_space
from etdeploy.tune.tuner import Goal, Tuned, Tuner
from tests.support.tune_bench import SimulatedBench, make_subject

FASTEST = "quantization=int8_static, threads=2"


def _tuner(folder: Path, *limits: str, budget_s: float = math.inf, **changes: Any) -> Tuner:
    goal = Goal("latency", parse_limits(limits, is_text=False), budget_s)
    bench = SimulatedBench(load_recipe("xnnpack"), **changes)

    def space(layers: tuple[str, ...]) -> Any:
        return derive_space(make_subject(metrics=tuple(goal.metrics), layers=layers))

    return Tuner(bench, Journal(folder), goal, space, lambda _: None)  # type: ignore[arg-type]


def _result(tuned: Tuned) -> TuneResult:
    return tune_result(tuned, "xnnpack", "simulated")


def test_the_fastest_within_the_limits_is_found(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path / "a", "error=10%").run()
    assert tuned.best is not None
    assert tuned.space.candidates[tuned.best].label == FASTEST
    assert tuned.reason in (EndReason.NO_GAIN, EndReason.COMPLETE)
    # The strict limit excludes it before it is measured.
    tuner = _tuner(tmp_path / "b", "error=3%")
    strict = tuner.run()
    assert strict.best is not None
    label = strict.space.candidates[strict.best].label
    assert label == "quantization=int8_dynamic, threads=2"
    assert not any("int8_static" in each for s in tuner.bench.sessions for each in s)  # type: ignore[attr-defined]
    # Neither rewrites nor threads would make it more exact.
    assert sum("int8_static" in each for each in tuner.bench.exports) == 1  # type: ignore[attr-defined]
    labels = [each.label for each in _result(strict).measured]
    assert "quantization=int8_static" in labels
    assert "quantization=int8_static, rewrites=none" not in labels
    reasons = {strict.space.candidates[n].label: why for n, why in strict.excluded.items()}
    assert "(quantization=int8_static)" in reasons["quantization=int8_static, rewrites=none"]


def test_high_loss_is_excluded_unless_the_user_limits_the_error(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path / "a").run()
    reasons = {tuned.space.candidates[n].label: why for n, why in tuned.excluded.items()}
    assert any("8da4w" in label for label in reasons)
    assert all("quantization loss" in why for why in reasons.values())
    allowed = _tuner(tmp_path / "b", "error=50%").run()
    assert not allowed.excluded


def test_ctrl_c_loses_nothing_and_the_same_search_continues(tmp_path: Path) -> None:
    tuner = _tuner(tmp_path, "error=10%", stopped_after=3)
    with pytest.raises(Interrupted):
        tuner.run()
    assert len(tuner.journal.found.programs) == 3
    again = _tuner(tmp_path, "error=10%")
    tuned = again.run()
    exported = again.bench.exports  # type: ignore[attr-defined]
    assert not set(exported) & set(tuner.bench.exports)  # type: ignore[attr-defined]
    assert tuned.space.candidates[tuned.best or 0].label == FASTEST


def test_a_lost_device_keeps_what_was_measured(tmp_path: Path) -> None:
    tuner = _tuner(tmp_path, lost_after=2)
    with pytest.raises(DeviceError, match="the device is gone"):
        tuner.run()
    assert len(Journal(tmp_path).found.sessions) == 2
    tuned = _tuner(tmp_path).run()
    assert tuned.space.candidates[tuned.best or 0].label == FASTEST


def test_a_finished_search_measures_nothing_again(tmp_path: Path) -> None:
    first = _tuner(tmp_path).run()
    tuner = _tuner(tmp_path)
    again = tuner.run()
    assert (tuner.bench.exports, tuner.bench.sessions) == ([], [])  # type: ignore[attr-defined]
    assert again.best == first.best
    assert [c for _, c in again.comparisons] == [c for _, c in first.comparisons]


def test_the_recipe_is_measured_even_if_it_breaks_a_limit(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path, "size=2MB", "error=50%", "peak_memory=+1%").run()
    assert 0 in tuned.excluded
    assert "latency" in tuned.figures(0)
    assert tuned.best
    # A change is relative to it.
    assert tuned.figures(tuned.best)["peak_memory"] <= 1.01 * tuned.figures(0)["peak_memory"]


def test_other_limits_use_what_was_measured(tmp_path: Path) -> None:
    _tuner(tmp_path).run()
    tuner = _tuner(tmp_path, "size=2MB", "error=50%")
    tuned = tuner.run()
    assert tuned.figures(tuned.best or 0)["size"] <= 2e6
    assert len(tuner.bench.exports) <= 2  # type: ignore[attr-defined]


def test_a_scheme_that_cannot_be_exported_is_left_out_with_the_reason(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path, failing=frozenset({"int8_static"})).run()
    assert tuned.space.candidates[tuned.best or 0].label == "quantization=int8_dynamic, threads=2"
    assert any("cannot be quantized with int8_static" in why for why in tuned.excluded.values())


def test_wrong_outputs_exclude_a_combination_and_stop_the_recipe_itself(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path / "a", wrong=frozenset({FASTEST})).run()
    assert tuned.space.candidates[tuned.best or 0].label != FASTEST
    with pytest.raises(MismatchError, match="no combination can be judged") as caught:
        _tuner(tmp_path / "b", wrong=frozenset({"the recipe as it is"})).run()
    assert "draws random numbers" in str(caught.value.remedy)


def test_limits_that_nothing_meets_name_the_closest_and_by_how_much(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path, "error=50%", "size=500kB", budget_s=600).run()
    assert tuned.best is None
    with pytest.raises(LimitError, match=r"100 % above 500\.0 kB") as caught:
        require_result(tuned)
    assert caught.value.exit_code == 12
    assert "--limit size=1MB" in str(caught.value.remedy)
    # The remedy, followed literally.
    loosened = _tuner(tmp_path, "error=50%", "size=1MB", budget_s=600).run()
    require_result(loosened)


def test_a_budget_that_is_shorter_than_one_export_is_refused(tmp_path: Path) -> None:
    tuner = _tuner(tmp_path / "a", budget_s=5)
    with pytest.raises(UsageError, match="shorter than one export, which takes at least 8 s"):
        tuner.run()
    assert tuner.bench.exports == []  # type: ignore[attr-defined]
    cached = _tuner(tmp_path / "c", budget_s=20)
    cached.estimated_export_s = 40
    with pytest.raises(UsageError, match="which takes about 40 s"):
        cached.run()
    assert cached.bench.sessions == []  # type: ignore[attr-defined]
    # Only the first export shows that it takes longer.
    with pytest.raises(UsageError, match="which took 30 s") as caught:
        _tuner(tmp_path / "b", budget_s=20).run()
    assert "--budget 5min" in str(caught.value.remedy)


def test_the_budget_is_kept(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path, budget_s=140).run()
    assert tuned.reason == EndReason.BUDGET
    assert tuned.found.spent_s <= 140 + 30
    assert tuned.best is not None


def test_the_layers_are_varied_once_they_are_known(tmp_path: Path) -> None:
    tuned = _tuner(tmp_path, "error=50%", layers=("0.0", "13")).run()
    assert any(knob.key == "export.overrides" for knob in tuned.space.knobs)
    assert tuned.found.layers == ("0.0", "13")


def test_every_claim_has_an_interval_or_says_that_it_has_none(tmp_path: Path) -> None:
    result = _result(_tuner(tmp_path, "error=10%").run())
    measured = [claim for claim in result.claims if claim.ratio]
    assert {claim.key for claim in measured} >= {"export.quantization", "runtime.threads"}
    for claim in measured:
        assert claim.ratio
        assert claim.ratio.low is not None
        assert claim.ratio.low <= claim.ratio.median <= (claim.ratio.high or 0)
    [slower] = [c for c in measured if c.key == "runtime.threads" and c.other == "1"]
    assert slower.verdict == Verdict.SLOWER
    assert "1 takes 1.4" in slower.text
    assert {c.verdict for c in result.comparisons} <= {Verdict.SLOWER, Verdict.NO_DIFFERENCE}


def test_the_front_has_the_best_and_nothing_that_is_worse_in_all(tmp_path: Path) -> None:
    result = _result(_tuner(tmp_path, "error=10%").run())
    front = [row for row in result.measured if row.on_front]
    assert result.best in front
    assert any(row.figures["error"] == 0 for row in front)
    assert not any("rewrites=none" in row.label for row in front)


def test_the_recipe_loads_as_what_was_measured_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: xnnpack\nbenchmark: {iterations: 7}\n")
    tuner = _tuner(tmp_path / "state", "error=10%")
    overrides = ("export.seed=3",)
    loaded = load_recipe("mine.yaml", overrides)
    tuner.bench.base = loaded
    result = _result(tuner.run())
    assert result.best
    best = tuner.bench.changed(result.best.changes)
    recipe = TunedRecipe("mine.yaml", overrides, loaded, best, result)
    path = write_recipe(recipe, Path("sub.yaml"), "--result")
    text = path.read_text()
    assert "extends: ./mine.yaml" in text
    assert re.search(r"none +(#\s+)?takes (1\.9|2\.0)", text)
    found = load_recipe(str(path)).recipe
    assert (found.export.quantization, found.export.seed, found.runtime.threads) == (
        "int8_static", 3, 2,
    )  # fmt: skip
    assert found.benchmark == loaded.recipe.benchmark


def test_an_edited_recipe_is_not_overwritten(tmp_path: Path) -> None:
    tuner = _tuner(tmp_path / "state")
    result = _result(tuner.run())
    assert result.best
    best = tuner.bench.changed(result.best.changes)
    recipe = TunedRecipe("xnnpack", (), load_recipe("xnnpack"), best, result)
    path = tmp_path / "best.yaml"
    write_recipe(recipe, path, "--result")
    assert free_name(path) == path
    write_recipe(recipe, path, "--result")  # its own, unedited
    path.write_text(path.read_text() + "# my note\n")
    assert free_name(path) == tmp_path / "best-2.yaml"
    file: ResultFile = recipe_file("--result")
    with pytest.raises(UsageError, match="is not an unedited recipe of etdeploy tune"):
        file.require_free(path)
    assert path.read_text().endswith("# my note\n")


def test_page_and_text_show_the_result(tmp_path: Path) -> None:
    result = _result(_tuner(tmp_path, "error=10%").run())
    page = tune_page(result)
    assert [section.key for section in page.sections] == [
        "front", "reasons", "compared", "all", "space",
    ]  # fmt: skip
    assert page.cards[0].lead
    texts = " ".join(getattr(block, "text", "") for block in tune_text(result))
    assert f"best: {FASTEST}" in texts
    again = TuneResult.model_validate_json(result.model_dump_json())
    assert again == result


def test_the_best_of_two_devices_has_the_smallest_worst_regret(tmp_path: Path) -> None:
    a, b = _tuner(tmp_path / "a"), _tuner(tmp_path / "b", wrong=frozenset({FASTEST}))
    found = {"a": a.run(), "b": b.run()}
    keys = [each.space.candidates[n].key for each in found.values() for n in each.ranking.order[:2]]
    for tuner, tuned in ((a, found["a"]), (b, found["b"])):
        measure_for_common(tuner, tuned, keys)
    common = common_best(found)
    assert common is not None
    # The fastest is wrong on B; the next one loses a little on A.
    assert common.label != FASTEST
    assert common.regrets["b"] == pytest.approx(0, abs=0.03)
    assert common.worst == common.regrets["a"] > 0.05


def test_fixed_keys_come_from_options_and_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(
        "model: {example: mlp}\nexport:\n  quantization: 8da8w  # fixed: it was validated\n"
        "  rewrites: auto  # not_fixed\n"
    )
    found = fixed_keys(load_recipe("r.yaml"), ["runtime.threads"])
    assert found == {
        "runtime.threads": "fixed with --fix",
        "export.quantization": "fixed at r.yaml:3:3",
    }
    assert "export.quantization" not in fixed_keys(
        load_recipe("r.yaml"), [], ["export.quantization"]
    )
    with pytest.raises(UsageError, match="named by --fix and by --vary"):
        fixed_keys(load_recipe("r.yaml"), ["export.seed"], ["export.seed"])
    with pytest.raises(UsageError, match="is not a key that can be varied"):
        fixed_keys(load_recipe("r.yaml"), ["benchmark.runs"])


def test_goals_that_the_recipe_cannot_measure_are_refused() -> None:
    with pytest.raises(UsageError, match="energy is measured in the sustained pass"):
        make_goal(load_recipe("xnnpack"), "energy", (), 60)
    goal = make_goal(load_recipe("xnnpack", ["benchmark.sustained_s=60"]), "energy", (), 60)
    assert goal.metrics == {"energy"}
    silent = load_recipe("llm-xnnpack", ["export.generation.evaluate=none"])
    with pytest.raises(UsageError, match="evaluate is none"):
        make_goal(silent, "latency", ["perplexity=+2%"], 60)
    with pytest.raises(RecipeError):
        load_recipe("no-such-recipe")


def test_numbers_of_threads_follow_the_clusters_of_a_device() -> None:
    from etdeploy.devices.base import CpuCluster, DeviceState

    big = CpuCluster(cpus=(4, 5, 6), capacity=700)
    prime = CpuCluster(cpus=(7,), capacity=1024)
    little = CpuCluster(cpus=(0, 1, 2, 3), capacity=200)
    assert thread_counts(DeviceState(clusters=(little, big, prime))) == (1, 2, 4, 8)
    assert thread_counts(DeviceState(clusters=(little, big, prime), usable_cpus=(0, 1))) == (1, 2)
    assert thread_counts(DeviceState()) == (1, 2, 4)
