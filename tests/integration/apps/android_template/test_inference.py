"""The app that times inferences, run from its launch intent with real programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.runner.protocol import RunnerResults
from tests.integration.apps.android_template.conftest import with_values
from tests.support.android_app import App, Screen, Tools, describe
from tests.support.runtime_runs import differences

pytestmark = pytest.mark.integration

_NIGHT, _SMALL = "w411dp-h891dp-night-xhdpi", "w360dp-h640dp-xhdpi"


@pytest.fixture(scope="module")
def screens(
    tools: Tools, inference_app: App, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Screen]:
    """One start of the machine for all scenarios: that is what takes long."""
    payload = inference_app.payload
    payload.mkdir(parents=True, exist_ok=True)
    shutil.copy(programs / "two_inputs" / "program.pte", payload)
    sizes = [
        with_values(programs / name, payload, name, 1e-5)
        for name in ("two_inputs", "counter", "mlp_xnnpack", "plain_inputs")
    ]
    wrong = sizes[0] | {"name": "wrong", "expected": [dict(v) for v in sizes[0]["expected"]]}
    wrong["expected"][0]["path"] = "two_inputs/inputs/0.bin"
    wrong["expected"][0]["shape"] = [2, 6]
    boolean = sizes[0] | {"name": "bool", "inputs": [sizes[0]["inputs"][0] | {"dtype": "bool"}]}
    describe(payload, sizes=[*sizes, wrong, boolean], iterations=5, warmup=2)

    def asked(name: str, **further: Any) -> dict[str, Any]:
        extras: dict[str, Any] = {"run_id": name, "size": "two_inputs"}
        return {"extras": extras | further}

    def program(name: str) -> str:
        return str(programs / name / "program.pte")

    damaged = tmp_path_factory.mktemp("damaged") / "damaged.pte"
    damaged.write_bytes(b"no program")
    scenarios: dict[str, dict[str, Any]] = {
        "asked": asked("asked", iterations=20, outputs=True, threads=2),
        "by_hand": {"click": ["run"], "then_click": ["share"]},
        "untouched": {"idle": True},
        "state": asked("state", program=program("counter"), size="counter", outputs=True, warmup=3),
        "delegated": asked(
            "delegated", program=program("mlp_xnnpack"), size="mlp_xnnpack", outputs=True, warmup=-1
        ),
        "beside": asked("beside") | {"files": {"program.pte": program("two_inputs")}},
        "wrong_beside": asked("wrong_beside") | {"files": {"program.pte": program("counter")}},
        "night": asked("night") | {"qualifiers": _NIGHT},
        "large": asked("large") | {"qualifiers": _SMALL, "font_scale": 2.0},
        "small": asked("small") | {"qualifiers": _SMALL, "font_scale": 0.85},
        "wrong": asked("wrong", size="wrong"),
        "left": asked("left", iterations=2_000_000) | {"leave": True},
        "full": asked("full")
        | {"files": {"results.json.tmp/x": program("counter")}, "await": "cannot be written"},
        "busy": asked("busy", iterations=100_000) | {"start_again": {"run_id": "second"}},
        "no_program": asked("no_program", program="/nowhere/program.pte"),
        "damaged": asked("damaged", program=str(damaged)),
        "no_size": asked("no_size", size="huge"),
        "none": asked("none", program=program("plain_inputs"), size="plain_inputs"),
        "bool": asked("bool", size="bool"),
        "no_iterations": asked("no_iterations", iterations=0),
        "other_inputs": asked("other_inputs", size="counter"),
    }
    return inference_app.start(tools, tmp_path_factory.mktemp("screens") / "all", scenarios)


def test_a_run_that_an_intent_asks_for_leaves_what_the_runner_would(
    screens: dict[str, Screen], programs: Path
) -> None:
    screen = screens["asked"]
    results = RunnerResults.model_validate(screen.results)
    assert screen.envelope["run_id"] == "asked"
    assert screen.envelope["schema_version"] == 1
    assert len(results.samples_ms) == 20
    assert all(ms > 0 for ms in results.samples_ms)
    assert (results.threads, results.warmup, results.steady) == (2, 2, None)
    assert [output.kind for output in results.outputs] == ["Tensor", "Tensor", "Int"]
    assert results.outputs[2].value == 2
    assert 0 < results.rss_after_load_bytes <= results.peak_rss_bytes
    for folder in ("files", "external"):
        for i, dtype in enumerate(("float32", "int64")):
            found = np.fromfile(screen.folder / folder / "outputs" / f"output-{i}.bin", dtype)
            wanted = np.fromfile(programs / "two_inputs" / "expected" / f"{i}.bin", dtype)
            assert np.array_equal(found, wanted)
    both = [screen.folder / folder / "results.json" for folder in ("files", "external")]
    assert both[0].read_bytes() == both[1].read_bytes()


@pytest.mark.parametrize("name", ["state", "delegated"])
def test_outputs_are_those_of_the_first_inference(
    screens: dict[str, Screen], programs: Path, name: str
) -> None:
    screen, program = screens[name], {"state": "counter", "delegated": "mlp_xnnpack"}[name]

    class AsRun:
        results = RunnerResults.model_validate(screen.results)
        folder = screen.folder / "files"

    assert max(differences(programs / program, AsRun())) < 1e-5  # type: ignore[arg-type]
    assert screen.text("verdict") == "As expected"


def test_a_warm_up_may_end_when_times_are_steady(screens: dict[str, Screen]) -> None:
    results = RunnerResults.model_validate(screens["delegated"].results)
    assert results.steady is not None
    assert results.warmup >= 3


def test_the_envelope_says_what_ran_where(screens: dict[str, Screen]) -> None:
    envelope = screens["asked"].envelope
    assert envelope["app"] == {
        "id": "org.example.tiny",
        "version": "1.0",
        "system": "Android 14 (API 34)",
        "debuggable": True,
    }
    assert envelope["thermal"]["status_before"] == "none"
    assert set(envelope["thermal"]) == {
        "status_before", "status_after", "headroom_before", "headroom_after",
    }  # fmt: skip


def test_a_person_runs_and_shares(screens: dict[str, Screen]) -> None:
    screen = screens["by_hand"]
    assert screen.envelope["run_id"] is None
    assert screen.text("run") == "Run again"
    assert screen.text("status") == "Done"
    assert screen.text("median").endswith(" ms")
    assert screen.text("median_of") == "Median of 5 inferences"
    for label in ("Minimum", "90th percentile", "99th percentile", "Mean", "First inference"):
        assert label in screen.texts
    assert '"samples_ms"' in screen.shown["shared"]
    assert not screen.shown["keeps_screen_on"]


def test_nothing_runs_until_it_is_asked_for(screens: dict[str, Screen]) -> None:
    screen = screens["untouched"]
    assert not (screen.folder / "files" / "results.json").exists()
    assert screen.text("run") == "Run"
    assert screen.shown["label"] == "Tiny"


def test_the_model_is_copied_once_and_not_at_all_where_one_lies_beside_the_app(
    screens: dict[str, Screen],
) -> None:
    (copied,) = (screens["asked"].folder / "files" / "model").iterdir()
    assert copied.suffix == ".pte"
    assert not (screens["beside"].folder / "files" / "model").exists()
    assert screens["beside"].results["samples_ms"]


def test_wrong_outputs_are_told(screens: dict[str, Screen]) -> None:
    assert screens["wrong"].envelope["status"] == "done"
    assert screens["wrong"].text("verdict") == "Not as expected"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("no_program", "program", "/nowhere/program.pte is missing"),
        ("wrong_beside", "program", "is another model: "),
        ("damaged", "load", "The model cannot be loaded: [ExecuTorch Error"),
        ("no_size", "usage", "The model has no size 'huge', but two_inputs, counter"),
        ("none", "program", "takes no input of kind None"),
        ("bool", "program", "has no tensors of bool"),
        ("no_iterations", "usage", "At least one iteration"),
        ("other_inputs", "run", "The first inference failed: [ExecuTorch Error"),
        ("left", "run", "was not in front until the end"),
    ],
)
def test_what_goes_wrong_is_told_on_the_screen_and_in_the_results(
    screens: dict[str, Screen], name: str, kind: str, said: str
) -> None:
    found, message = screens[name].error
    assert found == kind
    assert said in message
    assert screens[name].text("status") == message


def test_results_that_cannot_be_written_are_a_failure_and_no_crash(
    screens: dict[str, Screen],
) -> None:
    said = screens["full"].text("status")
    assert "results.json.tmp" in said
    external = screens["full"].folder / "external" / "results.json"
    assert json.loads(external.read_text())["error"] == {"kind": "run", "message": said}


def test_a_second_start_is_told_that_the_first_goes_on(screens: dict[str, Screen]) -> None:
    busy = (screens["busy"].folder / "busy.json").read_text()
    assert '"run_id": "second"' in busy
    assert "Another run is going on" in busy
    assert screens["busy"].envelope["run_id"] == "busy"


@pytest.mark.nightly
def test_without_its_library_the_app_says_so(
    tools: Tools, inference_app: App, screens: dict[str, Screen], tmp_path: Path
) -> None:
    asked = {"extras": {"run_id": "bare", "size": "two_inputs"}}
    (bare,) = inference_app.start(
        tools, tmp_path / "screens", {"bare": asked}, library=tmp_path
    ).values()
    kind, message = bare.error
    assert kind == "load"
    assert message.startswith("ExecuTorch's library cannot be loaded: no executorch_jni")


@pytest.mark.parametrize("name", ["asked", "night", "large", "small", "left", "wrong"])
def test_the_screen_is_one_for_everybody(screens: dict[str, Screen], name: str) -> None:
    """Touch targets of 48 dp, nothing cut off, what changes is spoken, a picture has words."""
    shown = screens[name].shown
    buttons = [view for view in shown["views"] if view["kind"].endswith("Button")]
    assert {view["id"] for view in buttons} >= {"run", "share"}
    for view in buttons:
        assert view["height"] >= 48 * shown["density"]
        assert view["width"] >= 48 * shown["density"]
    assert not [view["text"] for view in shown["views"] if view.get("ellipsized")]
    (status,) = [view for view in shown["views"] if view.get("id") == "status"]
    assert status["live"] == 1
    for picture in [view for view in shown["views"] if view["kind"] == "HistogramView"]:
        assert picture["description"].startswith("Distribution of latencies from ")


def test_it_is_dark_at_night(screens: dict[str, Screen]) -> None:
    day, night = (_brightness(screens[name]) for name in ("asked", "night"))
    assert day > 200
    assert night < 50


def _brightness(screen: Screen) -> float:
    """Of the picture's upper left corner, from 0 to 255."""
    red, green, blue = screen.shown["corner"]
    return float(red + green + blue) / 3
