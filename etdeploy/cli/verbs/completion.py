"""etdeploy completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from etdeploy.core import console

_WHERE = {
    "bash": 'eval "$(etdeploy completion bash)"         # in ~/.bashrc',
    "zsh": 'eval "$(etdeploy completion zsh)"          # in ~/.zshrc',
    "fish": "etdeploy completion fish > ~/.config/fish/completions/etdeploy.fish",
}


@click.command(epilog="bash: " + _WHERE["bash"])
@click.argument("shell", type=click.Choice(list(_WHERE)))
def command(shell: str) -> None:
    """Print the completion script of SHELL."""
    from etdeploy.cli.main import cli

    maker = get_completion_class(shell)
    if maker is None:  # pragma: no cover - click has all three
        raise click.ClickException(f"click has no completion for {shell}")
    console.message(f"To turn it on: {_WHERE[shell]}")
    console.result(maker(cli, {}, "etdeploy", "_ETDEPLOY_COMPLETE").source())
