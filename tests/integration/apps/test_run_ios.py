"""A recipe's program in an app on an iPhone, from the command line to the run record.

The phone is a stand-in that the real pymobiledevice3 talks with. Each of its commands takes 1 to
2 s and a run needs dozens, so there are few tests, and each looks at much.
"""

from __future__ import annotations

import json
import plistlib
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli, CliResult
from tests.support.export import export_workspace
from tests.support.ios_phone import IosPhone, Start, write_results
from tests.support.pymobiledevice3 import pymobiledevice3

pytestmark = pytest.mark.integration

__all__ = ["export_workspace", "pymobiledevice3"]

DATA = Path(__file__).parents[2] / "data" / "ios"
APP = "org.example.convnet"
# What the recorded crash reports call the process.
EXECUTABLE = "ConvNet"
# The program is that of test_run.py, so that it is exported once for both.
RECIPE = f"""
model: {{example: mlp, arguments: {{features: 48, width: 96, layers: 2}}}}
export: {{backend: xnnpack}}
benchmark: {{iterations: 20, warmup: 3, timeout_s: 60}}
app: {{id: {APP}}}
"""


@dataclass(frozen=True)
class Plugged:
    """The command line with a phone that is plugged in, and the app of the recipe."""

    cli: Cli
    phone: IosPhone
    ipa: Path
    model: dict[str, Any]

    def run(self, *more: str) -> CliResult:
        app = ("--as", "app", "--app", str(self.ipa))
        return self.cli("run", "-r", "recipe.yaml", "-d", "ios", *app, *more)

    def fails(self, code: int, **told: str) -> CliResult:
        """A run that ends so, says these words on stderr, and leaves no record."""
        result = self.run()
        assert result.code == code, result.stderr
        for words in told.values():
            assert words in result.stderr
        assert self.records() == []
        return result

    def reports(self, name: str, process: str) -> str:
        """Puts a recorded crash report on the phone, as of now; gives its name."""
        now = datetime.now(timezone.utc)
        head, _, rest = (DATA / name).read_text().partition("\n")
        dated = {**json.loads(head), "timestamp": f"{now:%Y-%m-%d %H:%M:%S}.00 +0000"}
        path = self.phone.crashes / f"{process}-{now:%Y-%m-%d-%H%M%S}.ips"
        path.write_text(f"{json.dumps(dated)}\n{rest}")
        return path.name

    def records(self) -> list[Path]:
        return sorted(self.cli.folder.glob("etdeploy-out/**/record.json"))


@pytest.fixture
def plugged(
    pymobiledevice3: Path, export_workspace: Workspace, tmp_path: Path
) -> Iterator[Plugged]:
    folder = tmp_path / "phone"
    folder.mkdir()
    with IosPhone(folder) as phone:
        tool = {"ETDEPLOY_PYMOBILEDEVICE3": str(pymobiledevice3)}
        cli = Cli(export_workspace.root, tmp_path, {**phone.environment, **tool})
        cli.recipe(RECIPE)
        cli.ok("app", "ios", "-r", "recipe.yaml", "-o", "MyApp")
        payload = tmp_path / "MyApp" / "Model"
        model = json.loads((payload / "model.json").read_text())
        phone.app = measuring(payload, model)
        yield Plugged(cli, phone, archived(payload, tmp_path / "mine.ipa"), model)


def archived(payload: Path, ipa: Path) -> Path:
    """An archive with what a build puts into an app, as far as etdeploy and iOS look at it."""
    information = {
        "CFBundleIdentifier": APP, "CFBundleExecutable": EXECUTABLE, "CFBundleVersion": "1",
        "CFBundleShortVersionString": "1.0", "CFBundleName": EXECUTABLE,
    }  # fmt: skip
    with zipfile.ZipFile(ipa, "w") as archive:
        archive.writestr("Payload/Net.app/Info.plist", plistlib.dumps(information))
        for file in payload.rglob("*"):
            archive.write(file, f"Payload/Net.app/Model/{file.relative_to(payload)}")
    return ipa


def measuring(payload: Path, model: dict[str, Any]) -> Callable[[Start], None]:
    """An app that gives the outputs of the model."""

    def app(start: Start) -> None:
        [expected] = model["sizes"][0]["expected"]
        output = {key: expected[key] for key in ("kind", "dtype", "shape")}
        wanted = start.options.get("outputs") == "true"
        leave(start, results={
            "schema_version": 1,
            "executorch_version": "1.5.1",
            "started_unix_s": 1,
            "threads": 6,
            "load_program_ms": 1.5,
            "rss_after_load_bytes": 50_000_000,
            "peak_rss_bytes": 60_000_000,
            "method": "forward",
            "warmup": 3,
            "load_method_ms": 0.5,
            "first_inference_ms": 2.0,
            "outputs": [{**output, **({"path": "output-0.bin"} if wanted else {})}],
            "samples_ms": [1.0, 1.25] * 10,
        }, outputs=(payload / expected["path"]).read_bytes() if wanted else None)  # fmt: skip

    return app


def leave(start: Start, *, outputs: bytes | None = None, **changes: Any) -> None:
    """Leaves results as the generated app does."""
    whole = {
        "schema_version": 1,
        "run_id": start.options["run_id"],
        "status": "done",
        "error": None,
        "app": {"id": APP, "version": "1.0", "system": "iOS 18.1"},
        "thermal": {"status_before": "none", "status_after": "light"},
        "results": None,
    }
    write_results(start, whole | changes)
    if outputs is not None:
        (start.documents / "outputs" / "output-0.bin").write_bytes(outputs)


def failing(kind: str, message: str) -> Callable[[Start], None]:
    """An app that leaves the reason of a failure."""
    return lambda start: leave(start, status="failed", error={"kind": kind, "message": message})


def test_an_app_gives_the_record_that_a_runner_gives(plugged: Plugged) -> None:
    result = plugged.run("--runs", "2", "--json")
    assert result.code == 0, result.stderr
    record = result.json
    assert record["runner"]["app"] == {
        "id": APP, "version": "1.0", "artifacts": ["swiftpm-1.5.1"], "build": "given",
    }  # fmt: skip
    assert (record["runner"]["target"], record["runner"]["provider"]) == ("ios-arm64", "prebuilt")
    assert record["device"]["facts"]["model"] == "iPhone 15 Pro (iPhone16,1)"
    assert record["workload"]["latency_ms"]["samples"] == [1.0, 1.25] * 20
    assert [check["within_tolerance"] for check in record["workload"]["outputs"]] == [True]
    assert record["peak_rss_bytes"] == 60_000_000
    assert sorted(record["passes"]) == ["memory", "timing", "timing.2"]
    assert "An app records no trace." in record["notes"]
    starts = [start.options for start in plugged.phone.starts]
    assert starts[0]["iterations"] == "20"
    assert [start.get("outputs") for start in starts] == ["true", None, None]
    assert len({start["run_id"] for start in starts}) == len(starts)

    again = plugged.run("--runs", "2")
    assert "Nothing has changed" in again.stderr
    assert f" app {APP}" in again.stdout
    assert "correct" in again.stdout
    assert plugged.phone.installs == 1
    assert len(plugged.phone.starts) == len(starts)


@pytest.mark.nightly
def test_wrong_outputs_of_an_app_are_wrong(plugged: Plugged) -> None:
    given = plugged.phone.app

    def wrong(start: Start) -> None:
        given(start)
        for path in start.documents.glob("outputs/*.bin"):
            path.write_bytes(b"\0" * (len(path.read_bytes()) - 4) + b"\0\0\x80?")

    plugged.phone.app = wrong
    result = plugged.run()
    assert result.code == 8, result.stderr
    assert "WRONG" in result.stdout
    assert "--device host" in result.stderr


@pytest.mark.nightly
def test_what_the_phone_or_the_app_says_is_told(plugged: Plugged) -> None:
    phone = plugged.phone
    phone.launch_error = (
        f"Unable to launch {APP} because the device was not, or could not be, unlocked."
    )
    plugged.fails(6, what="the phone is locked", remedy="Unlock it")
    phone.launch_error = None

    phone.app = failing("memory", "Failed to map 4 GB of weights")
    plugged.fails(
        7, what="in the timing pass: memory ran out", said="| Failed to map 4 GB of weights",
        remedy="make the model smaller",
    )  # fmt: skip

    phone.app = failing("interrupted", "The app was not in front until the end.")
    plugged.fails(6, what="was not in front until its run ended", remedy="turn on a Focus")

    phone.app = failing("load", "Missing operator: [0] mine::op.out")
    missing = plugged.fails(7, what="the app has no kernel for mine::op.out")
    # There is no such app for an iPhone.
    assert "app.runtime=source" not in missing.stderr

    def stale(start: Start) -> None:
        """Says that it has ended, and leaves what another start measured."""
        results = {**start.options, "run_id": "earlier-1"}
        leave(Start(results, start.documents, lambda _: None), results={"samples_ms": [1.0]})
        start.show(f"etdeploy: run {start.options['run_id']} has ended")

    phone.app = stale
    plugged.fails(6, what="they are those of another start, earlier-1")
    assert phone.installs == 1


@pytest.mark.nightly
def test_a_crash_and_a_lack_of_memory_are_told_from_the_phones_reports(plugged: Plugged) -> None:
    named: list[str] = []

    def crashing(start: Start) -> None:
        start.show("loading")
        named.append(plugged.reports("crash.ips", EXECUTABLE))

    plugged.phone.app = crashing
    crash = plugged.fails(
        7, what="was ended by SIGSEGV", said="| loading",
        where="executorch::runtime::Method::execute()",
    )  # fmt: skip
    assert f"report: {named[0]}" in crash.stderr
    assert re.search(r"log: (\S+)", crash.stderr)

    def jetsam(start: Start) -> None:
        named.append(plugged.reports("jetsam.ips", "JetsamEvent"))

    (plugged.phone.crashes / named[0]).unlink()
    plugged.phone.app = jetsam
    plugged.fails(
        7, what="was ended by SIGKILL", why="because memory ran out: per-process-limit",
        report="report: JetsamEvent-", remedy="make the model smaller",
    )  # fmt: skip


@pytest.mark.nightly
def test_an_app_of_another_program_never_reaches_the_phone(plugged: Plugged) -> None:
    result = plugged.run("--set", "export.seed=1")
    assert result.code == 5, result.stderr
    assert "made for another program" in result.stderr
    assert "etdeploy app ios" in result.stderr
    assert (plugged.phone.installs, plugged.phone.starts) == (0, [])
