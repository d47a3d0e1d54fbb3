"""The farm.yaml and the history that commands about nights use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.farm.report.source import Settings
    from etdeploy.history.place import Place

USUAL = Path("farm.yaml")


@dataclass(frozen=True)
class NamedFarm:
    """A farm's settings, its history, and its name; without a farm.yaml any farm's."""

    settings: Settings
    place: Place
    name: str | None


def named_farm(file: Path | None, store: str | None) -> NamedFarm:
    """The farm.yaml that is named, else the one of the working folder, else its defaults.

    Args:
        file: As the command line has it.
        store: As `--store` has it; it goes before the farm.yaml's.

    Raises:
        UsageError: The file is missing.
        RecipeError: It cannot be used.
        StoreError: No history is named, or it cannot be one.
    """
    from etdeploy.farm.report.end import settings_of
    from etdeploy.farm.report.source import Settings
    from etdeploy.farm.spec.load import load_farm
    from etdeploy.farm.spec.model import Farm
    from etdeploy.history.place import required_place

    if file is None and not USUAL.is_file():
        plain = Farm(name="farm", groups={}, pairs=(), results=Path())
        return NamedFarm(Settings(plain), required_place(store), None)
    if file is not None and file.is_dir():
        raise UsageError("this is a folder", place=str(file), remedy="Name a farm.yaml.")
    loaded = load_farm(file or USUAL)
    place = required_place(store or loaded.farm.store)
    return NamedFarm(settings_of(loaded), place, loaded.farm.name)
