"""etdeploy farm plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import json_option
from etdeploy.core import console
from etdeploy.core.errors import DeviceError, EtdeployError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from etdeploy.farm.forecast import Earlier, Forecast
    from etdeploy.farm.model import Offer
    from etdeploy.farm.spec.model import LoadedFarm


@click.command()
@click.argument("file", default="farm.yaml", type=click.Path(path_type=Path))
@json_option
def command(file: Path, as_json: bool) -> None:
    """Explain what a night would do, and what it cannot; change nothing.

    Shows which recipe is measured on which device, what is exported and built for all of them, how
    long the night takes, and which pairs have no device, with the reason. The exit code is 2 for a
    farm.yaml that cannot be used, and 6 if nothing could be measured.
    """
    from etdeploy.farm.certificates import check_certificate
    from etdeploy.farm.spec.load import load_farm

    loaded = load_farm(file)
    tls = loaded.farm.hosts.tls if loaded.farm.hosts else None
    if tls and (warning := check_certificate(tls)):
        console.warn(warning)
    forecast = _forecast(loaded)
    if as_json:
        console.result_json(forecast.model_dump(mode="json"))
    else:
        from etdeploy.farm.forecast import forecast_text

        console.result(forecast_text(forecast, console.width()))
    # Other hosts may have what is missing here.
    if not forecast.visits and loaded.farm.hosts is None:
        raise DeviceError("nothing can be measured", place=str(file), remedy=_REMEDY)


_REMEDY = "The plan says why. Plug in a device, or change the groups: etdeploy devices"


def _forecast(loaded: LoadedFarm) -> Forecast:
    from contextlib import closing
    from datetime import datetime, timezone

    from etdeploy.cache.workspace import Workspace
    from etdeploy.farm.forecast import forecast_night
    from etdeploy.farm.work.offers import Shelf

    workspace = Workspace.opened()
    with workspace.in_use():
        here = loaded.farm.hosts is None or loaded.farm.hosts.here
        with closing(Shelf(workspace, pools=loaded.farm.pools)) as shelf:
            offers = shelf.look() if here else ()
        earlier = _earlier(loaded, offers)
        return forecast_night(loaded, offers, earlier, datetime.now(timezone.utc), workspace)


def _earlier(loaded: LoadedFarm, offers: Sequence[Offer]) -> Earlier:
    """Durations of earlier runs; none if the history cannot be read."""
    from etdeploy.farm.forecast import earlier_seconds, visited_seconds
    from etdeploy.history.location import place_of
    from etdeploy.history.store.store import open_store

    names = {label: recipe.name for label, recipe in loaded.recipes.items()}
    try:
        place = place_of(loaded.farm.store)
        if place is None or (place.file and not place.file.exists()):
            return {}
        with open_store(place, read_only=True) as store:
            runs = earlier_seconds(store, names, offers)
            # Visits of nights are more exact: runs by hand have the time of their passes only.
            return {**runs, **visited_seconds(store, loaded.farm.name)}
    except EtdeployError as error:
        console.warn(f"times are guesses, because the history cannot be read: {error}")
        return {}
