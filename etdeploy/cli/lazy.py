"""Groups of commands, each of which is imported only when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches

import click


class LazyGroup(click.Group):
    """Has a command for each module of a package, whose `command` it is.

    The class of a group sets the attributes. The sentences stand there, so that showing the help
    imports none of the modules.
    """

    package: str
    """The package with the modules."""
    sentences: Mapping[str, str]
    """What each command does, by its name, in the order of the help."""
    title: str
    """Of the list in the help."""
    noun: str
    """What a command is called in messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.sentences)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.sentences:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"{self.package}.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        if not self.sentences:
            return
        with formatter.section(self.title):
            formatter.write_dl(list(self.sentences.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.sentences and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.sentences, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"There is no {self.noun} {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)
