"""A device in memory that understands the runner's arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceState,
    Leftover,
    PushReport,
    RunOutcome,
)
from tests.support.etdumps import make_etdump

# Half of an inference is in a delegate, a fifth in a kernel outside.
TRACE = make_etdump(
    (
        ("DELEGATE_CALL", 1_000, 6_000),
        ("native_call_add.out", 6_000, 8_000),
        ("Method::execute", 0, 10_000),
    )
)
SAMPLES_MS = (1.0, 1.1, 1.2)
_STATE = {"rss_bytes": 4_000_000, "pss_bytes": 3_000_000, "anonymous_bytes": 300_000}
_MEMORY = {
    "before_load": _STATE,
    "after_load": _STATE,
    "peak_pss_bytes": 5_000_000,
    "peak_footprint_bytes": None,
    "program_resident_bytes": 4096,
    "points": [[0.0, 4_000_000, 3_000_000], [0.01, 6_000_000, 5_000_000]],
}
# 10 s at 100 inferences per second, 10 s at 60.
_WORK = {"began_s": 0.1, "stretches": [[i, 100 if i <= 10 else 60] for i in range(1, 21)]}
Answer = Callable[[str], RunOutcome | None]


class FakeRun:
    """Writes results as the runner does; `answer` may end a pass otherwise."""

    def __init__(self, outputs: Sequence[bytes], shape: Sequence[int], answer: Answer) -> None:
        self.arguments: list[dict[str, str]] = []
        self.limits_s: dict[str, float] = {}
        self._outputs = outputs
        self._shape = list(shape)
        self._answer = answer
        self._files: dict[str, bytes] = {}

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        assert timeout_s > 0
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        self.arguments.append(given)
        name = Path(given["--results"]).stem
        self.limits_s[name] = timeout_s
        ended = self._answer(name)
        # The runner writes the results of sustained work while it goes on.
        if not ended or "--sustained-ms" in given:
            self._files[given["--results"]] = json.dumps(self._results(given)).encode()
        if ended:
            return ended
        if "--outputs" in given:
            for i, content in enumerate(self._outputs):
                self._files[f"{given['--outputs']}/{i}.bin"] = content
        if "--etdump" in given:
            self._files[given["--etdump"]] = TRACE
        return RunOutcome(0, None, "", f"{name} is done\n", 0.25)

    def pull(self, relative: str, to: Path) -> None:
        found = {
            name: content
            for name, content in self._files.items()
            if name == relative or name.startswith(f"{relative}/")
        }
        if not found:
            raise DeviceError(f"the run left no {relative}", place="fake")
        for name, content in found.items():
            target = to / name.removeprefix(relative).lstrip("/") if name != relative else to
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def _results(self, given: Mapping[str, str]) -> dict[str, Any]:
        outputs = [
            {"kind": "Tensor", "dtype": "float32", "shape": self._shape, "path": f"{i}.bin"}
            for i in range(len(self._outputs))
        ]
        return {
            "schema_version": 1,
            "executorch_version": "1.5.1+cpu",
            "method": given["--method"],
            "started_unix_s": 1_700_000_000,
            "threads": 2,
            **_warmup(given["--warmup"]),
            "verify_ms": 0.25,
            "load_program_ms": 0.5,
            "load_method_ms": 1.5,
            "rss_after_load_bytes": 5_000_000,
            "first_inference_ms": 3.0,
            "outputs": outputs if "--outputs" in given else [],
            "peak_rss_bytes": 6_000_000 if given["--warmup"] == "0" else 9_000_000,
            "samples_ms": list(SAMPLES_MS),
            "memory": _MEMORY if "--watch-memory" in given else None,
            "sustained": _WORK if "--sustained-ms" in given else None,
        }


def _warmup(given: str) -> dict[str, Any]:
    return {"warmup": 12, "steady": True} if given == "auto" else {"warmup": int(given)}


class FakeDevice:
    """Obeys the Device protocol; `answer(pass)` decides how a pass ends, None lets it work."""

    leftovers: tuple[Leftover, ...] = ()
    name = "android:FAKE"
    identity = "android:FAKE"
    capabilities = Capabilities()

    def __init__(
        self,
        outputs: Sequence[bytes],
        shape: Sequence[int],
        answer: Answer = lambda _: None,
        gone_after_run: bool = False,
    ) -> None:
        self.folder = FakeRun(outputs, shape, answer)
        self.run_ids: list[str] = []
        self.closed_runs = 0
        self._gone_after_run = gone_after_run

    def facts(self) -> DeviceFacts:
        return DeviceFacts(name=self.name, kind="android", target="android-arm64")

    def state(self) -> DeviceState:
        if self.closed_runs and self._gone_after_run:
            raise DeviceError("the device is gone", place=self.name)
        return DeviceState(battery_percent=80 - self.closed_runs)

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        progress("nothing to push")
        return PushReport(0, 0, len(bundle.files), 0.0)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        assert not self.closed_runs, "what was left is ended before the run"
        return self.leftovers

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[FakeRun]:
        assert bundle.process.argv
        self.run_ids.append(run_id)
        try:
            yield self.folder
        finally:
            self.closed_runs += 1

    def clean(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is held."""
