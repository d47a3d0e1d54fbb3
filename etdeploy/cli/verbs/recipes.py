"""etdeploy recipes."""

from __future__ import annotations

import click

from etdeploy.backends.names import DEFAULT_RECIPE
from etdeploy.cli.options import json_option, recipe_options
from etdeploy.core import console


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the bundled recipes; `show` and `schema` print details."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_recipes, as_json=False)


@command.command("list")
@json_option
def list_recipes(as_json: bool) -> None:
    """List the bundled recipes."""
    from etdeploy.recipe.load import bundled_recipes, load_recipe

    found = [load_recipe(name) for name in bundled_recipes()]
    if as_json:
        console.result_json(
            [
                {
                    "name": r.name,
                    "path": str(r.path),
                    "description": r.recipe.description,
                    "backend": r.recipe.export.backend,
                }
                for r in found
            ]
        )
        return
    rows = [(r.name, r.recipe.export.backend, r.recipe.description) for r in found]
    console.result(
        console.table(("recipe", "backend", "what it does"), rows, width=console.width())
    )
    console.message(f"\nStart your own:  etdeploy recipes show --recipe {DEFAULT_RECIPE} > my.yaml")


@command.command()
@recipe_options
@click.option(
    "--resolved", is_flag=True, help="Print every value with defaults and overrides, as JSON."
)
def show(recipe: str, overrides: tuple[str, ...], resolved: bool) -> None:
    """Print a recipe's YAML, or all of its resolved values."""
    from etdeploy.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides)
    if resolved or overrides or loaded.path is None:
        console.result_json(loaded.recipe.model_dump(mode="json"))
    else:
        console.result(loaded.path.read_text())


@command.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for completion in editors."""
    from etdeploy.recipe.schema import schema as make_schema

    console.result_json(make_schema())
