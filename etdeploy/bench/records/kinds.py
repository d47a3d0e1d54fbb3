"""Kinds of workloads."""

from __future__ import annotations

from etdeploy.core.kinds import Kind


class WorkloadKind(Kind):
    """What was run on the device."""

    INFERENCE = "inference"
    GENERATION = "generation"
