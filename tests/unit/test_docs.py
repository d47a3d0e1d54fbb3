"""The documentation: links between pages, and the command lines that pages show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from etdeploy.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_PROGRAM = re.compile(
    r"^(?:\$ )?(?:[A-Z][A-Z0-9_]*=\S+ )*(?:python3 dev\.py(?= run\b)|etdeploy) (?P<arguments>.+)$"
)


def _page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _code(page: Path) -> Iterator[str]:
    """The lines of a page's code blocks, and its code spans."""
    text = re.sub(r"\\\n\s*", " ", page.read_text()).replace("\\|", "|").replace("\\`", "")
    for block in re.findall(r"^```(?:console|sh|bash)\n(.*?)^```", text, re.M | re.S):
        yield from block.splitlines()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from (line.strip() for line in re.findall(r"^ {4}.+", prose, re.M))
    yield from (" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`", prose))


def _commands(page: Path) -> Iterator[list[str]]:
    for line in _code(page):
        found = _PROGRAM.match(re.split(r"\s+#|[|>;]|&&", line)[0].strip())
        if found:
            yield shlex.split(found["arguments"].replace("'s", "s"))


def _unknown(arguments: list[str]) -> str | None:
    """The first word that is neither a verb nor an option; capitals stand for the user's words."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        if arguments[0].isupper() or arguments[0] in ("...", "…", "VERB"):
            return None
        verb, *arguments = arguments
        below = command.get_command(context, verb.rstrip(",.:"))
        if below is None:
            return verb
        command = below
    known = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "-h"}
    for argument in arguments:
        if argument == "--":
            break
        if (
            len(argument) > 1
            and argument.startswith("-")
            and argument.partition("=")[0] not in known
        ):
            return argument
    return None


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_every_command_line_of_a_page_exists(page: Path) -> None:
    unknown = {" ".join(line): _unknown(line) for line in _commands(page)}
    assert not {line: what for line, what in unknown.items() if what}


def test_command_lines_are_found_in_pages() -> None:
    assert sum(len(list(_commands(page))) for page in PAGES) > 150
    assert _unknown(["run", "--recipe", "x", "--nonsense"]) == "--nonsense"
    assert _unknown(["farm", "nonsense"]) == "nonsense"
