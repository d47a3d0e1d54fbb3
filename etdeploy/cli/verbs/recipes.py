"""etdeploy recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.cli.options import options
from etdeploy.core import console

if TYPE_CHECKING:
    from etdeploy.recipe.load import LoadedRecipe


@click.group(invoke_without_command=True)
@click.pass_context
def recipes(ctx: click.Context) -> None:
    """List the available recipes; `show` and `schema` print details."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_recipes, as_json=False)


@recipes.command("list")
@options("json")
def list_recipes(as_json: bool) -> None:
    """List the bundled recipes and those of installed packages."""
    from etdeploy.recipe.load import bundled_recipes, load_recipe

    found = {name: load_recipe(name) for name in bundled_recipes()} | _packaged()
    if as_json:
        console.result_json(
            [
                {
                    "name": name,
                    "path": str(r.path),
                    "description": r.recipe.description,
                    "backend": r.recipe.export.backend,
                }
                for name, r in found.items()
            ]
        )
        return
    rows = [(name, r.recipe.export.backend, r.recipe.description) for name, r in found.items()]
    console.result(
        console.table(("recipe", "backend", "what it does"), rows, width=console.width())
    )
    console.message(f"\nStart your own:  etdeploy recipes show --recipe {DEFAULT_RECIPE} > my.yaml")


def _packaged() -> dict[str, LoadedRecipe]:
    """Load the recipes of other packages; warn of those that do not work."""
    from etdeploy.core.errors import EtdeployError
    from etdeploy.recipe.find import packaged_recipes, packages_problems, recipes_owner
    from etdeploy.recipe.load import load_recipe

    for problem in packages_problems():
        console.warn(f"{problem.message}\n{problem.remedy}")
    found = {}
    for name in packaged_recipes():
        try:
            found[name] = load_recipe(name)
        except EtdeployError as error:
            console.warn(f"the recipe {name} of {recipes_owner(name)} cannot be used:\n{error}")
    return found


@recipes.command()
@options("recipe", "set")
@click.option(
    "--resolved", is_flag=True, help="Print every value with defaults and overrides, as JSON."
)
def show(recipe: str | None, overrides: tuple[str, ...], resolved: bool) -> None:
    """Print a recipe's YAML, or all of its resolved values."""
    from etdeploy.recipe.load import load_recipe

    loaded = load_recipe(recipe or DEFAULT_RECIPE, overrides)
    if resolved or overrides or loaded.path is None:
        console.result_json(loaded.recipe.model_dump(mode="json"))
    else:
        console.result(loaded.path.read_text())


@recipes.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for completion in editors."""
    from etdeploy.recipe.reference import schema as make_schema

    console.result_json(make_schema())
