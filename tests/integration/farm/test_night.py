"""What a night does between its decisions: exported once, measured on phones and this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etdeploy.bench.records.stored import load_run
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import console
from etdeploy.farm.engine.local import LocalEngine
from etdeploy.farm.model import AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.work.prepare import PreparedArtifacts, prepare
from etdeploy.recipe.load import load_recipe
from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    AndroidRoot,
    MakeAndroid,
    adb_server,
    make_android,
)
from tests.support.export import export_workspace  # noqa: F401 - a fixture
from tests.support.processes import eventually

pytestmark = pytest.mark.integration

MLP = "model: {example: mlp}\nexport: {backend: xnnpack}\n"
RECIPES = {
    "mlp": MLP + "benchmark: {runs: 1, iterations: 5, warmup: 1}\n",
    "more": MLP + "benchmark: {runs: 1, iterations: 7, warmup: 1, profile: false}\n",
    "broken": "model: {python: 'broken.py:make'}\nexport: {backend: xnnpack}\n",
    "long": MLP + "benchmark: {runs: 1, iterations: 5, sustained_s: 600}\n",
}


@pytest.fixture(autouse=True)
def workspace(
    export_workspace: Workspace,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Workspace:
    """The cache with the programs that other tests exported, for the children, too."""
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(export_workspace.root))
    return Workspace.opened()


@pytest.fixture
def phones(
    make_android: MakeAndroid,  # noqa: F811
    adb_server: AdbServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> list[AndroidRoot]:
    """Two phones behind an adb server."""
    # The user's adb key is the test's own.
    monkeypatch.setenv("HOME", str(tmp_path))
    found = [make_android(), make_android()]
    for phone in found:
        adb_server.connect(phone)
    return found


@contextmanager
def running(output: Path, workspace: Workspace) -> Iterator[LocalEngine]:
    engine = LocalEngine(output, host="box", workspace=workspace)
    try:
        yield engine
    finally:
        engine.close()


def prepared(
    tmp_path: Path, workspace: Workspace, offers: list[AvailableDevice], *names: str
) -> PreparedArtifacts:
    (tmp_path / "broken.py").write_text("def make():\n    raise ValueError('no such model')\n")
    recipes = {}
    for name in names:
        path = tmp_path / f"{name}.yaml"
        path.write_text(RECIPES[name])
        recipes[name] = load_recipe(str(path))
    with console.TaskDisplay(live=False) as display:
        wanted = dict.fromkeys(names, offers)
        return prepare(recipes, wanted, tmp_path / "out", display, workspace=workspace)


def orders_of(found: PreparedArtifacts, offers: list[AvailableDevice]) -> dict[str, Order]:
    by_identity = {offer.identity: offer for offer in offers}
    return {
        f"{label} {identity}": Order(
            visit=f"{label} {identity}", attempt=1, offer=by_identity[identity], artifact=artifact,
            limit_s=300.0,
        )
        for (label, identity), artifact in found.artifacts.items()
    }  # fmt: skip


def all_ended(engine: LocalEngine, count: int) -> list[AttemptResult]:
    found: list[AttemptResult] = []
    while len(found) < count:
        found += engine.ended(60.0)
    return found


def test_two_recipes_on_two_phones(
    phones: list[AndroidRoot],
    workspace: Workspace,
    tmp_path: Path,
    data_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running(tmp_path / "out", workspace) as engine:
        offers = [o for o in engine.offers() if o.facts.kind == "android"]
        assert sorted(o.name for o in offers) == sorted(phone.spec for phone in phones)
        found = prepared(tmp_path, workspace, offers, "mlp", "more", "broken")
        # Everything is made once for both phones, and a failure is that of its pairs alone.
        said = capsys.readouterr().err
        assert said.count("program.pte") == 1, said
        assert len({artifact.key for artifact in found.artifacts.values()}) == 2
        assert len(list(workspace.folder(CacheKind.PARCELS).glob("[!.]*"))) >= 2
        assert {label for label, _ in found.failures} == {"broken"}
        assert {failure.kind for failure in found.failures.values()} == {"export"}
        assert len(found.failures) == 2
        assert "no such model" in next(iter(found.failures.values())).message
        orders = orders_of(found, offers)
        # One at a time on each phone, both phones at once.
        endings = []
        for label in ("mlp", "more"):
            for visit, order in orders.items():
                if visit.startswith(label):
                    engine.start(order)
            endings += all_ended(engine, 2)
    assert {ending.visit for ending in endings} == set(orders)
    for ending in endings:
        assert (ending.fate, ending.failure) == (Fate.DONE, None)
        assert ending.record is not None
        record = load_run(Path(ending.record)).record
        assert record.run_id == ending.run_id
        assert record.recipe.name == ending.visit.split()[0]
        assert record.device.facts.name == orders[ending.visit].offer.name
        assert ending.health is not None
        assert ending.health.battery_percent is not None
        assert ending.health.free_bytes is not None
    assert not data_folder.exists(), "the history is the coordinator's"


def test_a_phone_that_goes_away_in_the_middle(
    phones: list[AndroidRoot], workspace: Workspace, tmp_path: Path
) -> None:
    doing: dict[str, str] = {}
    engine = LocalEngine(
        tmp_path / "out", host="box", workspace=workspace,
        told=lambda visit, text, _: doing.__setitem__(visit, text),
    )  # fmt: skip
    try:
        offers = [o for o in engine.offers() if o.facts.kind == "android"]
        orders = orders_of(prepared(tmp_path, workspace, offers, "long"), offers)
        for order in orders.values():
            engine.start(order)
        assert wait_for(lambda: all("sustained" in doing.get(v, "") for v in orders))
        gone, stays = phones
        gone.kill_adbd()
        [ending] = all_ended(engine, 1)
        assert (ending.fate, ending.record) == (Fate.FAILED, None)
        assert ending.failure is not None
        assert (ending.failure.kind, ending.failure.place) == ("device", gone.spec)
        # It is offered no more, or with its problem; the other goes on.
        left = {o.name: o.problem for o in engine.offers() if o.facts.kind == "android"}
        assert left.pop(gone.spec, "gone")
        assert left == {stays.spec: ""}
        [other] = [v for v, order in orders.items() if order.offer.name == stays.spec]
        engine.cancel(other)
        [ending] = all_ended(engine, 1)
        assert (ending.visit, ending.fate) == (other, Fate.PUT_OFF)
        assert eventually(lambda: not [w for w in stays.processes() if "etdeploy-runner" in w])
        # It comes back, and a step of the ladder finds it.
        gone.start_adbd()
        [offer] = [o for o in offers if o.name == gone.spec]
        assert engine.recover(offer, "reconnect").problem == ""
    finally:
        engine.close()


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
