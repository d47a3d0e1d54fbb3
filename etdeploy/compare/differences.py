"""In what two runs differ, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etdeploy.bench.records.record import RunRecord

# Names and text; `extends` was followed.
_NO_SETTINGS = ("name", "description", "extends")
# How it was measured, and not what.
_MEASUREMENT = "benchmark."
# Those with which the times themselves may change.
_OF_TIMES = ("benchmark.warmup", "benchmark.iterations", "benchmark.cooldown")
_ABSENT = "none"


def differences(a: RunRecord, b: RunRecord) -> tuple[str, ...]:
    """What is under test, as `key A -> B`: settings, threads, program and runner."""
    settings = [
        f"{key} {_shown(x)} -> {_shown(y)}"
        for key, x, y in _changed(a, b)
        if not key.startswith(_MEASUREMENT)
    ]
    return (*settings, *_parts(a, b))


def measured_differently(a: RunRecord, b: RunRecord) -> tuple[str, ...]:
    """Settings of the measurement that differ, in the same form."""
    return tuple(
        f"{key} {_shown(x)} -> {_shown(y)}"
        for key, x, y in _changed(a, b)
        if key.startswith(_OF_TIMES)
    )


def _changed(a: RunRecord, b: RunRecord) -> Iterator[tuple[str, Any, Any]]:
    left, right = (dict(_flat(record.recipe.content)) for record in (a, b))
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key) and key not in _NO_SETTINGS:
            yield key, left.get(key), right.get(key)


def _flat(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _parts(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """Parts that may differ without any change of a setting."""
    if a.runner.threads != b.runner.threads:
        yield f"threads {a.runner.threads} -> {b.runner.threads}"
    if a.program.sha256 != b.program.sha256:
        yield f"program {_digest(a.program.sha256)} -> {_digest(b.program.sha256)}"
    if a.runner.sha256 != b.runner.sha256:
        yield f"runner {_digest(a.runner.sha256)} -> {_digest(b.runner.sha256)}"
    versions = a.runner.executorch_version, b.runner.executorch_version
    if versions[0] != versions[1]:
        yield f"ExecuTorch of the runner {versions[0]} -> {versions[1]}"


def _digest(sha256: str) -> str:
    return sha256[:8]


def _shown(value: object) -> str:
    """A value as a recipe has it; what is not set is `none`."""
    if value is None or value == []:
        return _ABSENT
    return str(value).lower() if isinstance(value, bool) else str(value)
