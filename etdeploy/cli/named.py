"""What a command line names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etdeploy.graph.job import AppWish

DEFAULT_OUTPUT = Path("etdeploy-out")


@dataclass(frozen=True)
class Named:
    """What the command line names.

    Attributes:
        heavy: How many exports and builds may run at once.
        app: That apps run the programs, and not runners.
    """

    recipes: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    devices: tuple[str | None, ...] = (None,)
    target: str | None = None
    output: Path = DEFAULT_OUTPUT
    measure_again: bool = False
    quiet: bool = False
    fail_fast: bool = False
    heavy: int | None = None
    app: AppWish | None = None

    @property
    def single(self) -> bool:
        """Whether just one recipe on one device is named: then results have another form."""
        return len(self.recipes) == 1 and len(self.devices) == 1
