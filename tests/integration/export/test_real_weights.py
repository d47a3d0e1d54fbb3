"""Models with trained weights solve their tasks: in floats, and with quantization schemes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from etdeploy.export.spec import ExportSpec
from tests.support.export import assert_exported, nightly_except, run_support, selected, spec_of
from tests.support.real.files import FAMILIES, Unavailable, recipe

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Case:
    """Networks of a family as programs for XNNPACK; the family's others stay eager.

    Attributes:
        bounds: The least and the largest value of figures.
        sqnr_db: The least of any output.
        in_floats: Modules that stay in floats.
    """

    family: str
    networks: tuple[str, ...]
    scheme: str
    bounds: Mapping[str, tuple[float, float]]
    sqnr_db: float
    in_floats: tuple[str, ...] = ()


_MTCNN = ("pnet", "rnet", "onet")
# Ten cents are 0.58 %.
_PITCH = {
    "concert_pitch_hz": (437.5, 442.5),
    "median_error_cents": (0, 10),
    "within_50_cents_percent": (100, 100),
}
_SPEECH = {"f1_percent": (90, 100), "false_alarms_percent": (0, 2)}
_FACES = {"found_percent": (100, 100), "mean_iou": (0.85, 1), "false_detections": (0, 0)}
CASES = {
    "pitch": Case("crepe-tiny", ("crepe-tiny",), "none", _PITCH, 90),
    "pitch-int8": Case("crepe-tiny", ("crepe-tiny",), "int8_static", _PITCH, 25),
    # One of its convolutions of one dimension is in floats, between others in 8 bits.
    "speech-mixed": Case("vad", ("vad",), "int8_static", _SPEECH, 9, in_floats=("conv1",)),
    "speech-int8": Case("vad", ("vad",), "int8_static", _SPEECH, 9),
    "faces-int8": Case("mtcnn", ("pnet",), "int8_static", _FACES, 10),
    "speech": Case(
        "vad", ("vad",), "none", {"f1_percent": (96, 100), "false_alarms_percent": (0, 0)}, 90
    ),
    "all-faces": Case("mtcnn", _MTCNN, "none", _FACES, 90),
    "all-faces-int8": Case("mtcnn", _MTCNN, "int8_static", _FACES, 9),
    "pictures": Case(
        "efficientnet-lite0",
        ("efficientnet-lite0",),
        "none",
        {"right_percent": (80, 100), "same_class_percent": (100, 100)},
        80,
    ),
    "pictures-int8": Case(
        "efficientnet-lite0",
        ("efficientnet-lite0",),
        "int8_static",
        {"right_percent": (70, 100), "same_class_percent": (40, 100)},
        5,
    ),
}
_DAILY = ("pitch-int8", "speech-mixed")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """Figures and losses of each case, exported in one process and run in another."""
    root = tmp_path_factory.mktemp("real")
    specs: dict[str, ExportSpec] = {}
    cases: dict[str, tuple[str, dict[str, str]]] = {}
    for name in sorted({*_DAILY, *selected(request, "name")} - _without_speech()):
        case = CASES[name]
        family, overrides = FAMILIES[case.family], dict.fromkeys(case.in_floats, "none")
        export = {"backend": "xnnpack", "quantization": case.scheme, "overrides": overrides}
        try:
            made = {network: recipe(family, network, export) for network in case.networks}
        except Unavailable as reason:
            pytest.skip(str(reason))
        specs |= {f"{name}.{network}": spec_of(each) for network, each in made.items()}
        cases[name] = (case.family, {n: str(root / f"{name}.{n}") for n in case.networks})
    assert_exported(root, specs)
    (root / "cases.json").write_text(json.dumps(cases))
    return run_support("real.execute", str(root / "cases.json"))


def _without_speech() -> set[str]:
    """Cases that cannot run here, since nothing speaks."""
    return set() if shutil.which("espeak-ng") else {n for n in CASES if CASES[n].family == "vad"}


@pytest.mark.parametrize("name", nightly_except(CASES, *_DAILY))
def test_a_program_solves_its_task(found: dict[str, Any], name: str) -> None:
    if name in _without_speech():
        pytest.skip("needs espeak-ng")
    figures = found[name]["figures"]
    for figure, (least, most) in CASES[name].bounds.items():
        assert least <= figures[figure] <= most, figures
    for losses in found[name]["losses"].values():
        assert min(loss["sqnr_db"] for loss in losses) >= CASES[name].sqnr_db, losses
