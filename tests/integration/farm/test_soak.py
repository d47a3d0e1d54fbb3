"""A night of real processes in which hosts, coordinator and database are killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")
pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from tests.support.debian import RootUnavailable
from tests.support.farm_soak import (
    Kills,
    Soak,
    free_address,
    phones_of,
    running_hosts,
)
from tests.support.farm_soak_adbd import RealPhone, running_phones, with_real
from tests.support.farm_soak_judge import judge
from tests.support.farm_soak_night import Settings
from tests.support.postgres import running

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

PHONES = with_real(phones_of(2, 8), 1)


@pytest.fixture
def phones(tmp_path: Path) -> Iterator[list[RealPhone]]:
    """One of the eight phones, with a real adbd."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(running_phones(tmp_path, PHONES))
        except RootUnavailable as reason:
            pytest.skip(str(reason))
        yield found


def test_nothing_is_lost_or_counted_twice_whatever_is_killed(
    phones: list[RealPhone], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "none")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    address = free_address()
    with running() as server, running_hosts(tmp_path, address, PHONES) as hosts:
        # No window, so a slow machine takes longer and measures as much.
        settings = Settings(
            store=server.new_database("soak"), listen=address, recipes=("a-2.0", "b-3.0"),
            repeats=2, phones=8, scale=30.0, grace_s=2.0,
        )  # fmt: skip
        settings.save(tmp_path)
        soak = Soak(tmp_path, settings, hosts, server, seed=1, most_away_s=2.0, phones=phones)
        try:
            soak.run(300, until=lambda: soak.programs >= 6 and bool(phones[0].lines()))
            once = Kills(
                host=1, coordinator=1, database=1, frozen=1, unplugged=1, program=1, adbd=1
            )
            soak.plan(once, 0.0, 2.0)
            soak.run(300)
        finally:
            soak.close()
        if not server.children:
            server.start()
        outcome = judge(tmp_path, settings, phones)
    assert outcome.is_well, outcome
    assert soak.crashes == []
    assert soak.done["host"] == soak.done["coordinator"] == soak.done["database"] == 1
    assert soak.done["adbd"] == 1
    assert outcome.real > 0
    assert outcome.standings["done"] > 0
