"""What several modules of this folder run."""

from __future__ import annotations

from tests.support.export import export_workspace
from tests.support.runtime_runs import programs, text_programs

__all__ = ["export_workspace", "programs", "text_programs"]
