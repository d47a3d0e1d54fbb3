"""What the cache contains, each kind in its own folder."""

from __future__ import annotations

from etdeploy.core.kinds import Kind


class CacheKind(Kind):
    """The folders of the cache."""

    PROGRAMS = "programs"
    RUNNERS = "runners"
    WHEELS = "wheels"
    BUILDS = "builds"
    SOURCES = "sources"
    ZIG = "zig"
    KITS = "kits"
    BUNDLES = "bundles"
    TRACES = "traces"
    PARCELS = "parcels"
    FETCHED = "fetched"
    STATE = "state"
    LOGS = "logs"
    LOCKS = "locks"
