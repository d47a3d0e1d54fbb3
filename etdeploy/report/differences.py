"""What differs between runs: a comparison is only worth what else was the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from etdeploy.bench.records.record import RunRecord
from etdeploy.report.shown import NOTHING

_LONGEST = 80


def differences(records: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    """The values that are not the same in all records, by name; a dash where one has none.

    Of every run, its recipe with all values, what ran, what ran it, on what.
    """
    each = [dict(_values(record)) for record in records]
    names = dict.fromkeys(name for values in each for name in values)
    found = {name: tuple(values.get(name, NOTHING) for values in each) for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _values(record: RunRecord) -> Iterator[tuple[str, str]]:
    program, runner, facts = record.program, record.runner, record.device.facts
    yield from _flat("recipe", record.recipe.content)
    yield "recipe.commit", record.recipe.git_revision or NOTHING
    yield "recipe.uncommitted changes", str(record.recipe.git_dirty).lower()
    yield from _flat("device", facts.model_dump(mode="json", exclude_none=True))
    wanted = {"sha256", "size_bytes", "method", "backend", "quantization", "source"}
    yield from _flat("program", program.model_dump(mode="json", include=wanted))
    yield from _flat("runner", runner.model_dump(mode="json"))
    yield from _flat("versions", record.versions)
    yield "simulated", record.simulated.by if record.simulated else "no"


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{prefix}.{key}", each)
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # Two long values may differ at their ends only: those have to stay visible.
    half = _LONGEST // 2
    yield prefix, text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"
