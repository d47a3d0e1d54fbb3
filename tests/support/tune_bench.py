"""A simulated device for searches: exports and measures in no time, with noise and failures."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from etdeploy.backends.registry import exporting_names
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.recipe.load import LoadedRecipe, load_recipe
from etdeploy.targets.platforms import host_target
from etdeploy.tune.journal import MeasuredCandidate, ProgramFailed, ProgramMade, SessionEnded
from etdeploy.tune.space import Combination, Space, TuneSubject, changed_recipe, derive_space
from tests.support.compare_values import RUN_A, RUN_B, started

EXPORT_S, START_S = 30.0, 1.0
# Factors of the time by key and value.
FACTORS: Mapping[str, Mapping[str, float]] = {
    "export.quantization": {
        "int8_static": 0.5, "int8_dynamic": 0.7, "8da4w": 1.2, "8da8w": 1.1,
    },
    "export.rewrites": {"none": 1.15},
    "runtime.threads": {"1": 1.3, "2": 0.9},
    "export.overrides": {},
}  # fmt: skip
ERRORS = {"none": 0.0, "int8_static": 0.05, "int8_dynamic": 0.02, "8da4w": 0.2, "8da8w": 0.01}


@dataclass
class SimulatedBench:
    """Stands for a `Workbench`: the same methods, on a device that is computed.

    Attributes:
        lost_after: Sessions after which the device is gone; None for never.
        stopped_after: Exports after which Ctrl-C is pressed; None for never.
        failing: Schemes whose export fails.
        wrong: Labels whose outputs are not the model's.
    """

    base: LoadedRecipe
    draw: random.Random = field(default_factory=lambda: random.Random(3))
    noise: float = 0.01
    lost_after: int | None = None
    stopped_after: int | None = None
    failing: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    layers: tuple[str, ...] = ()
    exports: list[str] = field(default_factory=list)
    sessions: list[tuple[str, ...]] = field(default_factory=list)
    device: Any = field(
        default_factory=lambda: SimpleNamespace(device=SimpleNamespace(name="simulated"))
    )

    def true_ms(self, candidate: Combination) -> float:
        """What a start takes without noise."""
        factor = 1.0
        for key, value in candidate.changes:
            text = value if isinstance(value, str) else json.dumps(value)
            factor *= FACTORS.get(key, {}).get(text, 1.0)
        return 10 * factor

    def make(self, programs: Sequence[str], _label: str) -> list[ProgramMade | ProgramFailed]:
        found: list[ProgramMade | ProgramFailed] = []
        for program in programs:
            if self.stopped_after is not None and len(self.exports) >= self.stopped_after:
                raise Interrupted
            self.exports.append(program)
            changes = json.loads(program)
            scheme = changes.get("export.quantization", "none")
            if scheme in self.failing:
                reason = f"the layer cannot be quantized with {scheme}"
                found.append(ProgramFailed(program=program, seconds=EXPORT_S, reason=reason))
                continue
            size = 4e6 if scheme == "none" else 1e6
            figures = {"size": size, "error": ERRORS[scheme]}
            found.append(
                ProgramMade(
                    program=program, seconds=EXPORT_S, is_new=True, figures=figures,
                    has_high_loss=scheme == "8da4w",
                )
            )  # fmt: skip
        return found

    def measure(
        self, candidates: Sequence[Combination], _known: Collection[str], phase: str, starts: int
    ) -> SessionEnded:
        if self.lost_after is not None and len(self.sessions) >= self.lost_after:
            raise DeviceError("the device is gone", remedy="Plug it in.")
        drift = math.exp(self.draw.gauss(0, 0.05))
        measured = []
        for candidate in candidates:
            times = tuple(
                self.true_ms(candidate) * drift * math.exp(self.draw.gauss(0, self.noise))
                for _ in range(starts)
            )
            figures = {"latency": sorted(times)[len(times) // 2], "peak_memory": 2e7, "load": 1.0}
            wrong = "output_0 is not what the model gives" if candidate.label in self.wrong else ""
            measured.append(
                MeasuredCandidate(
                    candidate=candidate.key, series={"latency": times}, figures=figures,
                    record=f"/records/{len(self.sessions)}", outputs_differ=wrong,
                )
            )  # fmt: skip
        self.sessions.append(tuple(candidate.label for candidate in candidates))
        seconds = START_S * starts * len(candidates)
        return SessionEnded(phase=phase, measured=tuple(measured), seconds=seconds)

    def compare(self, a: Combination, b: Combination, pairs: int) -> tuple[StoredRun, StoredRun]:
        sides = [
            [self.true_ms(each) * math.exp(self.draw.gauss(0, 0.002)) for _ in range(pairs)]
            for each in (a, b)
        ]
        first = started(sides[0], run_id=RUN_A, interleaved_with=RUN_B)
        second = started(sides[1], run_id=RUN_B, interleaved_with=RUN_A)
        return StoredRun(Path("/out", RUN_A), first), StoredRun(Path("/out", RUN_B), second)

    def profile_layers(self, _candidate: Combination) -> tuple[str, ...]:
        return self.layers

    def changed(self, changes: Mapping[str, Any]) -> LoadedRecipe:
        given = self.base.recipe.model_dump(mode="json", exclude_unset=True)
        return replace(self.base, recipe=changed_recipe(given, changes))


def make_subject(
    bundled: str = "xnnpack", metrics: Sequence[str] = (), **changes: Any
) -> TuneSubject:
    """What a space is derived from: this machine with two cores, and no other backend."""
    loaded = load_recipe(bundled)
    own = loaded.recipe.export.backend
    values: dict[str, Any] = {
        "recipe": loaded.recipe,
        "target": host_target(),
        "cores": (1, 2),
        "metrics": frozenset(("latency", *metrics)),
        "fixed": {},
        "varied": {},
        "unusable": {name: "it is not installed" for name in exporting_names() if name != own},
        **changes,
    }
    return TuneSubject(**values)


def make_space(bundled: str = "xnnpack", metrics: Sequence[str] = (), **changes: Any) -> Space:
    """The space of a recipe on this machine."""
    return derive_space(make_subject(bundled, metrics, **changes))
