"""What a long night came to, by the database and by the logs of its phones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etdeploy.farm.model import Standing
from etdeploy.history.location import require_location
from etdeploy.history.nights import FINISHED, KeptNight, KeptVisit
from tests.support.farm_soak_adbd import RealPhone
from tests.support.farm_soak_night import Settings

_OVER = (Standing.DONE, Standing.FAILED, Standing.MISSED)


@dataclass(frozen=True)
class Outcome:
    """What a night came to.

    Attributes:
        standings: Visits by where they stand.
        fates: Attempts by how they ended.
        records: In the history.
        lost: Visits that are not over, have no reason, or of which the history has no record.
        doubles: Visits of which several attempts count, records that no attempt counts for.
        overlaps: Programs that began on a phone while another ran there.
        programs: That began on phones.
        real: Those of them on phones with a real adbd.
        recoveries: How often a step of the ladder brought a phone back, by its name.
        left: What goes on running on phones with a real adbd.
        problems: Anything else that is wrong.
    """

    standings: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lost: tuple[str, ...] = ()
    doubles: tuple[str, ...] = ()
    overlaps: tuple[str, ...] = ()
    programs: int = 0
    real: int = 0
    recoveries: Counter[str] = field(default_factory=Counter)
    left: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[str, ...]:
        """All that must not be."""
        return (*self.problems, *self.lost, *self.doubles, *self.overlaps, *self.left)

    @property
    def is_well(self) -> bool:
        return not self.wrong

    def shown(self) -> dict[str, Any]:
        return {
            **{f"visits {name}": number for name, number in sorted(self.standings.items())},
            **{f"attempts {name}": number for name, number in sorted(self.fates.items())},
            "records in the history": self.records,
            "programs begun on phones": self.programs,
            "of these with a real adbd": self.real,
            **{f"back after {step}": number for step, number in sorted(self.recoveries.items())},
            "lost": len(self.lost),
            "double": len(self.doubles),
            "two at once on a phone": len(self.overlaps),
            "left running on phones": len(self.left),
        }


def judge(folder: Path, settings: Settings, phones: Sequence[RealPhone] = ()) -> Outcome:
    """What the database and the phones say of the night.

    Args:
        folder: Of the night.
        settings: Of the night.
        phones: Those with a real adbd, which still run.
    """
    left = [f"{phone.identity}: {words}" for phone in phones for words in phone.left()]
    for phone in phones:
        phone.keep_log(folder)
    nights, visits, records = _kept(settings.store)
    counted = {each.id: [a.run_id for a in each.attempts if a.counts] for each in visits}
    named = {run_id for run_ids in counted.values() for run_id in run_ids}
    expected = settings.phones * len(settings.recipes) * settings.repeats
    lost = [each.id for each in visits if _is_lost(each, records)]
    doubles = [visit for visit, run_ids in counted.items() if len(run_ids) > 1]
    problems = [] if len(visits) == expected else [f"{len(visits)} visits, not {expected}"]
    if [night.outcome for night in nights] != [FINISHED]:
        problems.append(f"nights: {nights}")
    logs = [line for log in sorted((folder / "phones").glob("*.log")) for line in lines_of(log)]
    return Outcome(
        standings=Counter(each.standing for each in visits),
        fates=Counter(str(a.fate) for each in visits for a in each.attempts),
        records=len(records),
        lost=tuple(lost),
        doubles=(*doubles, *sorted(each for each in records if each not in named)),
        overlaps=tuple(line for line in logs if line.startswith("overlap")),
        programs=_begun(logs),
        real=_begun([line for phone in phones for line in phone.lines()]),
        recoveries=_recoveries(folder),
        left=tuple(left),
        problems=tuple(problems + [f"{n} times {r}" for r, n in Counter(records).items() if n > 1]),
    )


def _begun(lines: Sequence[str]) -> int:
    return sum(line.startswith("begin") for line in lines)


def _recoveries(folder: Path) -> Counter[str]:
    told = (folder / "night.log").read_text()
    return Counter(re.findall(r" can be used again after: (\w+)$", told, re.MULTILINE))


def _is_lost(visit: KeptVisit, records: Container[str | None]) -> bool:
    if visit.standing not in _OVER or any(each.ended_at is None for each in visit.attempts):
        return True
    if visit.standing != Standing.DONE:
        return not visit.reason
    return not any(each.counts and each.run_id in records for each in visit.attempts)


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines()


def _kept(where: str) -> tuple[list[KeptNight], list[KeptVisit], Counter[str]]:
    """Nights, the visits of the last one, and the ids of all records."""
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import Filter, open_store

    with open_store(require_location(where), read_only=True) as store:
        with store.transaction() as connection:
            found = list(nights.nights_of(connection, "soak", 100))
            visits = nights.visits_of(connection, found[0].id) if found else []
        records = Counter(entry.run_id for entry in store.entries(Filter(), 1_000_000))
    return found, list(visits), records
