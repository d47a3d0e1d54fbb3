"""Runs the verb; the only place that catches errors.

What only a failure needs is imported then: it takes as long as the rest of the help.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches

import click

from etdeploy import __version__
from etdeploy.core import cancel, console
from etdeploy.core.errors import EtdeployError, Interrupted, PluginError, UsageError


class LazyGroup(click.Group):
    """Imports the module of a command when the command is used, so that the help imports none.

    A subclass sets the attributes.
    """

    package: str
    """The package with the modules."""
    table: Mapping[str, tuple[str, str]]
    """Module and sentence of each command, in the order of the help; in the module, the command
    is the function of its name, with underscores."""
    title: str
    """Of the list in the help."""
    noun: str
    """What messages call a command."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"{self.package}.{self.table[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section(self.title):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.table, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"There is no {self.noun} {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "Export, build, deploy, measure and summarize, all in one."),
    "plan": ("plan", "Explain what a run would do and why; change nothing."),
    "export": ("export", "Turn the recipe's model into a program (.pte)."),
    "inspect": ("export", "Show what a .pte file contains."),
    "build": ("build", "Build the runner for the program and a target."),
    "app": ("app", "Write a sample app for Android or iOS, and build it."),
    "push": ("build", "Copy the runner and the program to the device."),
    "bench": ("run", "Measure again, even if nothing changed."),
    "generate": ("generate", "Let a language model on the device continue a text."),
    "chat": ("chat", "Talk with a language model on the device."),
    "serve": ("serve", "Serve a language model on the device by OpenAI's API."),
    "evaluate": ("evaluate", "Score a language model on the device, by a file of tasks."),
    "compare": ("compare", "Find out which of two recipes or runs is faster."),
    "tune": ("tune", "Search the settings of a recipe that are best on a device."),
    "diff": ("diff", "Locate the first node that a program computes wrongly."),
    "profile": ("report", "Show where the time of a run goes, and why."),
    "report": ("report", "Write runs as a page, as Markdown, or for other tools."),
    "history": ("history", "Show how a recipe's numbers changed over time, and when."),
    "check": ("check", "Compare a run with earlier ones; exit with 1 if it is worse."),
    "lock": ("lock", "Record what a deployment is made from, with digests."),
    "verify": ("lock", "Export a locked recipe again, and say what has changed."),
    "upgrade-check": ("upgrade", "Run a recipe with two releases of ExecuTorch, and compare."),
    "farm": ("farm", "Measure recipes on a shelf of devices, every night."),
    "alerts": ("alerts", "Show what became worse in a farm, and close what is settled."),
    "devices": ("machine", "List the devices that can be reached."),
    "recipes": ("recipes", "List, show and describe recipes."),
    "doctor": ("machine", "Check what is installed, and how to install what is missing."),
    "clean": ("clean", "Show what is in the cache, and delete parts of it."),
    "completion": ("machine", "Print the completion script for a shell."),
}

EXIT_BUG = 9
EXIT_INTERRUPTED = 130


class _Verbs(LazyGroup):
    """The verbs of the command line."""

    package = "etdeploy.cli.verbs"
    table = VERBS
    title = "Verbs"
    noun = "verb"


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with:  etdeploy run    (no phone, NDK or ExecuTorch checkout needed)",
)
@click.version_option(__version__, prog_name="etdeploy")
def cli() -> None:
    """Put a PyTorch model on a device with ExecuTorch, and time it there."""


def run_cli(arguments: list[str]) -> int:
    """Run one command line; turn every failure into a message and an exit code."""
    try:
        with cancel.trapped_signals():
            cli.main(
                args=arguments,
                prog_name="etdeploy",
                standalone_mode=False,
                terminal_width=_help_width(),
            )
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        console.message(shown.getvalue().rstrip())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort, Interrupted):
        console.message("stopped. Finished steps are kept; run the same command again to continue.")
        return EXIT_INTERRUPTED
    except EtdeployError as error:
        return _report(error)
    except Exception as error:
        from etdeploy.core.files.basic import find_disk_full
        from etdeploy.core.plugins import plugin_error

        if surroundings := surroundings_error(error):
            return _report(surroundings)
        if full := find_disk_full(error):
            return _report_no_room(full)
        if blamed := plugin_error(error):
            return _report(blamed)
        report_bug(error, arguments)
        return EXIT_BUG
    return 0


def _help_width() -> int | None:
    """Return a width below click's minimum of 50 columns; None lets click find the width."""
    columns = console.width()
    return columns if columns and columns < 52 else None


def _report(error: EtdeployError) -> int:
    if isinstance(error, PluginError):
        from etdeploy.cache.crash_log import keep_traceback

        keep_traceback(error)
    if not isinstance(error.__cause__, BrokenPipeError):
        console.message(f"error ({error.kind}): {error}")
    # Otherwise the reader closed the pipe (`| head`), which is not an error.
    return error.exit_code


def _report_no_room(error: OSError) -> int:
    from etdeploy.cache.workspace import Workspace
    from etdeploy.core.files.basic import disk_full_error

    return _report(disk_full_error(error, Workspace.default().root))


def surroundings_error(error: Exception) -> EtdeployError | None:
    """Return the error of an exception that the working folder causes; else None."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is the same
    except OSError as reason:
        gone = UsageError(
            f"the current folder cannot be used: {reason.strerror}",
            remedy="It was deleted or moved, or you may not enter it. Change to another one:\ncd ~",
        )
        gone.__cause__ = error
        return gone
    return None


def report_bug(error: Exception, arguments: list[str]) -> None:
    """Write the traceback with versions to the cache's log folder, and name the file."""
    from etdeploy.cache.crash_log import traceback_text, write_traceback

    text = traceback_text(error, arguments)
    log = write_traceback(text)
    if log is None:
        sys.stderr.write(text)
    console.message(
        f"error (bug): this is a bug in etdeploy: {type(error).__name__}: {error}\n"
        f"  what to do: report it with {'this file' if log else 'the text above'}, which contains "
        "the traceback" + (f"\n  log: {log}" if log else "")
    )
