"""Jobs whose steps are played: what they share is told, and what they do is counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from etdeploy.core.files.basic import write_atomic
from etdeploy.graph.tasks.steps import DedupKey, Load, Step, StepLog


@dataclass
class Stage:
    """What the jobs of one test have in common.

    Attributes:
        ran: The steps that did something, as `export a`, in the order in which they ended.
        made: What was really made, by kind and key: later jobs find it.
        failing: Errors, by step and job.
        during: Called while a step runs, by step and job.
    """

    folder: Path
    ran: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    failing: dict[str, BaseException] = field(default_factory=dict)
    during: dict[str, Callable[[], object]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def job(
        self, name: str, program: str = "p", runner: str = "r", known: bool = True, device: str = ""
    ) -> tuple[tuple[Step, ...], Path]:
        """The steps of one job, and the folder of its state.

        Args:
            name: Of the job.
            program: Jobs with the same one share the export.
            runner: Jobs with the same one share the runner.
            known: Whether the runner is known before the export.
            device: What it is measured on: phones are measured beside builds.
        """
        state = self.folder / name
        runner_same = DedupKey(
            lambda: runner if known else None,
            "plan",
            lambda: json.loads((state / "plan.json").read_text())["runner"],
            lambda: runner,
        )
        measures = Load.LIGHT if device else Load.MEASURES
        return (
            self._step(name, "export", {"program": program}, load=Load.HEAVY,
                       same=DedupKey(lambda: program), key=program),
            self._step(name, "plan", {"runner": runner}, needs=("export",)),
            self._step(name, "runner", {"made": runner}, needs=("plan",), load=Load.HEAVY,
                       same=runner_same, key=runner),
            self._step(name, "bench", {"ms": 1}, needs=("export", "runner"), load=measures,
                       alone=lambda: device or "host"),
        ), state  # fmt: skip

    def _step(
        self, job: str, name: str, value: object, *, key: str = "", needs: tuple[str, ...] = (),
        load: Load = Load.LIGHT, same: DedupKey | None = None,
        alone: Callable[[], str | None] = lambda: None,
    ) -> Step:  # fmt: skip
        output = self.folder / job / f"{name}.json"

        def act(log: StepLog) -> str:
            log.log.write_text("tried\n")
            call = f"{name} {job}"
            if call in self.failing:
                raise self.failing[call]
            self.during.get(call, lambda: None)()
            with self.lock:
                if key and f"{name} {key}" not in self.made:
                    self.made.append(f"{name} {key}")
                self.ran.append(call)
            write_atomic(output, json.dumps(value))
            return f"made {name}"

        return Step(
            name, f"does {name}", output, act, needs=needs, inputs={"value": value}, load=load,
            same=same, alone=alone,
        )  # fmt: skip
