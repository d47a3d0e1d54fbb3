"""Nights by the real command line in which the phone, its host or the database goes away."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.history.location import require_location
from etdeploy.history.store.store import Filter, open_store
from tests.integration.cache.test_disk import tmpfs
from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    AndroidRoot,
    MakeAndroid,
    adb_server,
    make_android,
)
from tests.support.cli import Cli
from tests.support.debian import RootUnavailable
from tests.support.export import export_workspace  # noqa: F401 - a fixture
from tests.support.network import OtherMachine, other_machine
from tests.support.postgres import running
from tests.support.processes import listening

pytestmark = pytest.mark.integration

MLP = "model: {example: mlp}\nexport: {backend: xnnpack}\n"
ONCE = "benchmark: {runs: 1, iterations: 5, warmup: 1}\n"
LONG = "benchmark: {runs: 1, iterations: 5, warmup: 1, sustained_s: 3}\n"


@pytest.fixture
def phones(
    make_android: MakeAndroid,  # noqa: F811
    adb_server: AdbServer,  # noqa: F811
) -> list[AndroidRoot]:
    found = [make_android(), make_android()]
    for phone in found:
        adb_server.connect(phone)
    return found


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    folder = tmp_path / "farm"
    folder.mkdir()
    (folder / "mlp.yaml").write_text(MLP + ONCE)
    (folder / "long.yaml").write_text(MLP + LONG)
    env = {"ETDEPLOY_STORE": str(tmp_path / "history.db"), "HOME": str(tmp_path)}
    return Cli(export_workspace.root, folder, env)


def lines_of(stdout: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The visits of `--json`, and the totals."""
    *visits, totals = map(json.loads, stdout.splitlines())
    return visits, totals


@contextmanager
def beside(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Does something in a thread, which is asked to end with the block."""
    over = threading.Event()
    thread = threading.Thread(target=act, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def measures(phone: AndroidRoot, option: str) -> bool:
    """Whether the phone runs a program with this option."""
    return phone.is_up and any(
        "etdeploy-runner" in words and option in words for words in phone.processes()
    )


@pytest.mark.nightly
def test_a_recipe_that_takes_every_phone_down_is_stopped_and_the_phones_are_not_blamed(
    cli: Cli, phones: list[AndroidRoot]
) -> None:
    (cli.folder / "farm.yaml").write_text(
        "recipes: [long.yaml, mlp.yaml]\ndevices: {phones: {kind: android}}\n"
        # Enough tries for one phone to wait until the other one is back.
        "repeats: 1\nstop_after: 2\nretries: 9\n"
    )

    def take_down(phone: AndroidRoot, over: threading.Event) -> None:
        while not over.wait(0.02):
            if measures(phone, "sustained"):
                phone.kill_adbd()
                over.wait(0.5)
                phone.start_adbd()

    first, second = (partial(take_down, phone) for phone in phones)
    with beside(first), beside(second):
        done = cli("farm", "run", "--now", "--json")
    visits, totals = lines_of(done.stdout)
    ended = {(each["recipe"], each["standing"]) for each in visits}
    assert ended == {("mlp", "done"), ("long", "failed")}, done.stderr
    assert done.code == totals["exit_code"] == 6, done.stderr
    assert totals["totals"]["quarantined"] == {}
    for each in visits:
        if each["recipe"] == "long":
            assert "it failed on 2 devices" in each["reason"]
            assert each["failure"]["kind"] == "device"
            assert each["attempts"] < 10
    assert "no device is quarantined" in cli.ok("farm", "quarantine").stdout
    assert "stopped for this night" in cli.ok("farm", "report").stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def worker(cli: Cli, scheduler: str, cache: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A host beside the coordinator, with a cache of its own."""
    host = Cli(cache, cli.folder, cli.env).start(
        "farm", "worker", "--scheduler", scheduler, "--name", "shelf", *options
    )
    try:
        yield host
    finally:
        host.send_signal(signal.SIGTERM)
        _, stderr = host.communicate(timeout=120)
    assert host.returncode == 0, stderr


@pytest.mark.nightly
def test_a_phone_and_the_database_go_away_in_a_night_over_hosts(
    cli: Cli,
    phones: list[AndroidRoot],
    tmp_path: Path,
) -> None:
    pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    scheduler = f"tcp://127.0.0.1:{free_port()}"
    (cli.folder / "farm.yaml").write_text(
        f"recipes: [long.yaml, mlp.yaml]\ndevices: {{phones: {{name: '{phones[0].spec}'}}}}\n"
        f"repeats: 2\nhosts: {{listen: '{scheduler}', here: false}}\n"
    )
    with running() as server:
        store = server.new_database("night")

        def enemy(over: threading.Event) -> None:
            while not measures(phones[0], "sustained") and not over.wait(0.02):
                pass
            server.stop()
            phones[0].kill_adbd()
            over.wait(10.0)
            phones[0].start_adbd()
            server.start()

        coordinator = Cli(cli.cache, cli.folder, {**cli.env, "ETDEPLOY_STORE": store})
        with worker(cli, scheduler, tmp_path / "cache"), beside(enemy):
            done = coordinator("farm", "run", "--now", "--json")
        visits, totals = lines_of(done.stdout)
        with open_store(require_location(store), read_only=True) as history:
            kept = [entry.run_id for entry in history.entries(Filter(), 99)]
    assert (done.code, totals["exit_code"]) == (0, 0), done.stderr
    assert sorted((v["recipe"], v["repeat"], v["standing"], v["host"]) for v in visits) == [
        (recipe, repeat, "done", "shelf") for recipe in ("long", "mlp") for repeat in (1, 2)
    ]
    # One attempt was lost with the phone; nothing is missing or twice.
    assert totals["totals"]["attempts"] == 5
    assert sorted(kept) == sorted(v["run_id"] for v in visits)
    assert "the device went away" in done.stderr
    assert "can be used again" in done.stderr or "is back on shelf" in done.stderr
    assert "database unreachable" in done.stderr
    assert "database reachable again" in done.stderr


def test_no_other_machine_can_connect_to_a_night_that_listens_for_this_one(
    cli: Cli, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")
    port = free_port()
    (cli.folder / "farm.yaml").write_text(
        "recipes: [long.yaml]\ndevices: {here: {name: host}}\nrepeats: 1\n"
        f"hosts: {{listen: 'tcp://127.0.0.1:{port}', here: false}}\n"
    )
    with (
        reachable_machine() as other,
        socket.create_server(("", 0)) as control,
        worker(cli, f"tcp://127.0.0.1:{port}", tmp_path / "cache", "--device", "host") as shelf,
    ):
        night = cli.start("farm", "run", "--now", "--json")
        found: set[tuple[str, int]] = set()
        reached: list[int] = []
        # Until the night has ended: while it exports, waits for the host and measures.
        while night.poll() is None:
            new = listening(night.pid, shelf.pid) - found
            reached += [each for _, each in new if other.can_connect(other.ours, each)]
            found |= new
            time.sleep(0.5)
        assert other.can_connect(other.ours, control.getsockname()[1])
        visits, totals = lines_of(night.communicate()[0])
    assert [(each["host"], each["standing"]) for each in visits] == [("shelf", "done")], totals
    assert ("127.0.0.1", port) in found
    assert reached == []
    assert {address for address, _ in found} == {"127.0.0.1"}


@contextmanager
def reachable_machine() -> Iterator[OtherMachine]:
    with ExitStack() as stack:
        try:
            machine = stack.enter_context(other_machine())
        except RootUnavailable as reason:
            pytest.skip(str(reason))
        yield machine


@pytest.mark.nightly
def test_a_disk_that_is_full_in_the_middle_of_a_night(cli: Cli, tmp_path: Path) -> None:
    (cli.folder / "farm.yaml").write_text(
        "recipes: [mlp.yaml]\ndevices: {here: {name: host}}\nrepeats: 4\nresults: ../disk/results\n"
    )
    # Each record has the model's graph and weights, 21 MB.
    with tmpfs(tmp_path / "disk", "size=32m") as disk:
        night = cli.start("farm", "run", "--now", "--json")
        assert night.stderr is not None
        said = ""
        for line in night.stderr:
            said += line
            if "is left alone until" in line:
                night.send_signal(signal.SIGINT)
                break
        stdout, rest = night.communicate(timeout=120)
        first, totals = lines_of(stdout)
        assert (night.returncode, totals["exit_code"]) == (130, 130), said + rest
        assert "No space left on device" in said
        assert "Make room on this host" in said
        assert [each["standing"] for each in first] == ["done"]
        assert totals["totals"]["failed"] == 0
        subprocess.run(["mount", "-o", "remount,size=400m", str(disk)], check=True)
        second, totals = lines_of(cli.ok("farm", "run", "--now", "--json").stdout)
        records = {json.loads(p.read_text())["run_id"] for p in disk.glob("*/*/*/record.json")}
    visits = first + second
    assert [each["standing"] for each in visits] == ["done"] * 4
    assert records == {each["run_id"] for each in visits}
    with open_store(require_location(cli.env["ETDEPLOY_STORE"]), read_only=True) as history:
        assert {entry.run_id for entry in history.entries(Filter(), 99)} == records


def test_how_nights_end_without_a_failure_of_the_farm(cli: Cli) -> None:
    wrong = ONCE.replace("runs:", "tolerance: {max_abs_error: 0}, runs:")
    (cli.folder / "wrong.yaml").write_text(MLP + wrong)
    farm = cli.folder / "farm.yaml"
    farm.write_text(
        "recipes: [mlp.yaml, wrong.yaml]\nrepeats: 1\n"
        "devices: {here: {name: host}, none: {model: Nothing*}}\n"
    )
    differs = cli("farm", "run", "--now", "--json")
    visits, totals = lines_of(differs.stdout)
    assert (differs.code, totals["exit_code"]) == (8, 8), differs.stderr
    assert totals["totals"]["unsatisfied"] == ["mlp on none", "wrong on none"]
    done = [each for each in visits if each["standing"] == "done"]
    kinds = {each["recipe"]: each["failure"] and each["failure"]["kind"] for each in done}
    assert kinds == {"mlp": None, "wrong": "outputs differ"}
    absent = [each["reason"] for each in visits if each["standing"] == "missed"]
    assert [reason[:31] for reason in absent] == ["no device has model Nothing*: h"] * 2
    assert (
        f"2 visits missed: mlp, wrong on any of none\n  {absent[0]}"
        in cli.ok("farm", "report").stdout
    )
    assert "the outputs of 1 of 4 visits differ; the worst: output_0" in differs.stderr

    cli.ok("farm", "quarantine", "host", "--reason", "its fan is broken")
    nothing = cli("farm", "run", "--now", "--json", "--again")
    visits, totals = lines_of(nothing.stdout)
    assert (nothing.code, totals["exit_code"]) == (6, 6), nothing.stderr
    assert {each["reason"] for each in visits} == {
        "quarantined: its fan is broken", absent[0]
    }  # fmt: skip
    assert "nothing was measured" in nothing.stderr
