"""The measuring code of the app, compiled and run: its results are the runner's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.runner.protocol import RunnerResults
from tests.support.ios_template import Compiled, floats, write_payload

pytestmark = pytest.mark.integration


class App:
    """Starts the program, and reads what it left."""

    def __init__(self, compiled: Compiled, folder: Path) -> None:
        self.compiled = compiled
        self.model = folder / "Model"
        self.documents = folder / "Documents"
        self.documents.mkdir()

    def start(self, *words: str, manner: str = "fine") -> str:
        return self.compiled.run(
            "/model",
            "/documents",
            manner,
            *words,
            folders={"model": self.model, "documents": self.documents},
        )

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.documents / "results.json").read_text())
        return found

    def results(self) -> RunnerResults:
        return RunnerResults.model_validate(self.report()["results"])


@pytest.fixture
def app(inference: Compiled, tmp_path: Path) -> App:
    app = App(inference, tmp_path)
    write_payload(app.model)
    return app


def test_the_results_are_those_of_a_runner(app: App) -> None:
    app.start("run_id=abc", "warmup=3", "iterations=7")
    report, results = app.report(), app.results()
    assert set(report) == {
        "schema_version", "run_id", "status", "error", "app", "thermal", "results",
    }  # fmt: skip
    assert (report["schema_version"], report["run_id"], report["status"]) == (1, "abc", "done")
    assert report["error"] is None
    assert set(report["app"]) == {"id", "version", "system", "debuggable"}
    assert report["thermal"]["status_before"] == report["thermal"]["status_after"] == "none"
    assert report["thermal"]["headroom_before"] is report["thermal"]["headroom_after"] is None
    assert (results.executorch_version, results.method) == ("1.5.1", "forward")
    assert (results.warmup, results.steady, len(results.samples_ms)) == (3, None, 7)
    assert (results.threads, results.outputs) == (1, ())
    assert results.started_unix_s > 1_700_000_000
    assert min(results.samples_ms) > 0


def test_times_are_milliseconds(app: App) -> None:
    app.start("warmup=0", "iterations=5", manner="slow")
    assert 2 <= min(app.results().samples_ms) < 20


def test_the_warm_up_ends_when_times_stop_falling(app: App) -> None:
    app.start("iterations=1", manner="slow")
    results = app.results()
    assert results.steady is True
    # Three blocks of 50 ms at least: one that sets the mark, and two that do not.
    assert 20 <= results.warmup <= 500


def test_outputs_are_written_when_asked_for(app: App) -> None:
    app.start("outputs=true", "iterations=1", "warmup=0")
    tensor, whole, infinite = app.results().outputs
    assert (tensor.kind, tensor.dtype, tensor.shape) == ("Tensor", "float32", (3,))
    assert tensor.path == "output-0.bin"
    assert (app.documents / "outputs/output-0.bin").read_bytes() == floats(2, 4, 6)
    assert (whole.kind, whole.value) == ("Int", 3)
    assert (infinite.kind, infinite.value) == ("Double", None)


def test_outputs_are_judged_by_the_expected_ones(app: App) -> None:
    said = app.start("iterations=10", "warmup=0")
    twice, three = (line.split() for line in said.splitlines() if line.startswith("verdict"))
    assert twice[1:3] == ["twice", "true"]
    assert float(twice[3]) == pytest.approx(0.0005, rel=0.01)
    assert three[1:] == ["three", "false", "1.0"]
    assert said.splitlines()[0] == "progress 0.1"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "int64", "float64"])
def test_a_type_of_another_width_is_told_apart(app: App, dtype: str) -> None:
    facts = json.loads((app.model / "model.json").read_text())
    facts["sizes"][0]["expected"][0]["dtype"] = dtype
    (app.model / "model.json").write_text(json.dumps(facts))
    said = app.start("iterations=1", "warmup=0")
    assert "verdict twice false" in said


def test_true_and_false_are_values(app: App) -> None:
    facts = json.loads((app.model / "model.json").read_text())
    facts["sizes"][0]["inputs"].append({"kind": "Bool", "value": True})
    facts["sizes"][0]["expected"][1] = {"kind": "Int", "value": 3, "name": ""}
    (app.model / "model.json").write_text(json.dumps(facts))
    assert "true 0.0" in app.start("iterations=1", "warmup=0")


@pytest.mark.parametrize(
    ("words", "manner", "kind", "message"),
    [
        ((), "load", "load", "no backend"),
        ((), "run", "run", "the method failed"),
        (("iterations=0",), "fine", "usage",
         "iterations takes a whole number from 1 on, not '0'"),
        (("warmup=x",), "fine", "usage", "warmup takes a whole number from -1 on, not 'x'"),
        (("speed=1",), "fine", "usage", "there is no option speed"),
        (("size=large",), "fine", "usage", "the model has no size 'large'"),
        (("program=/other.pte",), "fine", "program", "there is no program /other.pte"),
    ],
)  # fmt: skip
def test_a_failure_is_a_result(
    app: App, words: tuple[str, ...], manner: str, kind: str, message: str
) -> None:
    app.start("run_id=r1", *words, manner=manner)
    report = app.report()
    assert (report["status"], report["run_id"], report["results"]) == ("failed", "r1", None)
    assert report["error"] == {"kind": kind, "message": message}


def test_words_of_the_system_are_not_options(app: App) -> None:
    app.start("-NSDocumentRevisionsDebugMode", "YES", "-AppleLanguages=(de)", "iterations=1")
    assert app.report()["status"] == "done"


def test_a_broken_model_json_is_told(app: App) -> None:
    (app.model / "model.json").write_text("{")
    app.start("run_id=r1")
    assert app.report()["error"]["kind"] == "program"
    assert "model.json cannot be read" in app.report()["error"]["message"]


def test_a_program_beside_the_app_is_found_in_documents(app: App) -> None:
    facts = json.loads((app.model / "model.json").read_text())
    (app.model / "model.json").write_text(json.dumps({**facts, "bundled": False}))
    app.start("iterations=1")
    assert app.report()["error"]["message"] == "there is no program /documents/program.pte"
    (app.documents / "program.pte").write_bytes(b"x")
    app.start("iterations=1")
    assert app.report()["status"] == "done"


@pytest.mark.parametrize("calls", [2, 5, 9])
def test_a_run_that_leaves_the_front_is_no_measurement(app: App, calls: int) -> None:
    """In the warm-up, between samples, and in the last one."""
    app.start("run_id=r1", "warmup=3", "iterations=5", manner=f"leave {calls}")
    report = app.report()
    assert (report["status"], report["results"]) == ("failed", None)
    assert report["error"]["kind"] == "interrupted"
    assert "not in front" in report["error"]["message"]


def test_results_that_cannot_be_written_are_told(app: App) -> None:
    (app.documents / "results.json").mkdir()
    said = app.start("run_id=r1", "iterations=1")
    assert "ended failed The results cannot be written: " in said
