"""What an app is called."""

from __future__ import annotations

from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.app_ids import suggested_segment


def app_id(loaded: LoadedRecipe) -> str:
    """The application id on Android, the bundle id on iOS."""
    # Apple's ids know no underscore.
    return loaded.recipe.app.id or f"org.example.{suggested_segment(loaded.name).replace('_', '')}"


def app_name(loaded: LoadedRecipe) -> str:
    """What stands below the icon."""
    return loaded.recipe.app.name or loaded.name
