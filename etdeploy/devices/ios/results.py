"""What a generated app leaves in its documents after a start: results.json, and outputs; pure."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError


class AppError(BaseModel):
    """Why a start gave nothing."""

    kind: str
    message: str


class AppThermal(BaseModel):
    """The phone's heat around a start, by the names of DeviceState.thermal_status."""

    status_before: str | None = None
    status_after: str | None = None


class AppResults(BaseModel):
    """results.json of an app; what another version adds to it is not looked at.

    Attributes:
        run_id: Of the start that left it.
        status: A start that failed leaves results, too.
        results: What the runner's results.json contains.
    """

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[1]
    run_id: str | None
    status: Literal["done", "failed"]
    error: AppError | None = None
    thermal: AppThermal | None = None
    results: dict[str, Any] | None = None


def parse_results(text: str) -> AppResults | None:
    """The results in a file; None where it contains something else."""
    try:
        return AppResults.model_validate(json.loads(text))
    except (ValueError, ValidationError):
        return None
