"""The JSON Schema of run records."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.rows import record_schema
from tests.support.bench_values import FOLDER, SIMULATED, make_record
from tests.support.report_values import make_full_record

SCHEMA = record_schema()


def _json(record: RunRecord) -> Any:
    return json.loads(record.model_dump_json())


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "record", [make_record(), make_record(simulated=SIMULATED), make_full_record()]
)
def test_records_are_valid(record: RunRecord) -> None:
    jsonschema.validate(_json(record), SCHEMA)
    jsonschema.validate(StoredRun(FOLDER, record).printed(), SCHEMA)


@pytest.mark.parametrize(
    "change",
    [{"schema_version": 4}, {"load_ms": "fast"}, {"colour": "red"}, {"passes": {"timing": {}}}],
)
def test_other_values_are_not(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**_json(make_record()), **change}, SCHEMA)


def test_every_key_is_described() -> None:
    parts = [SCHEMA, *(part for part in SCHEMA["$defs"].values() if "properties" in part)]
    missing = [
        f"{part['title']}.{key}"
        for part in parts
        for key, value in part["properties"].items()
        if not value.get("description")
    ]
    assert missing == []
