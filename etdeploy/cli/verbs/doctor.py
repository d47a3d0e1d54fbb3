"""etdeploy doctor."""

from __future__ import annotations

import click

from etdeploy.cli.options import json_option
from etdeploy.core import console


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Check what is installed here, and say how to install what is missing.

    The exit code is 4 if something is missing that a run on this machine needs.
    """
    from etdeploy.core.errors import BuildError
    from etdeploy.doctor import examine

    findings = examine()
    if as_json:
        console.result_json([f.model_dump(mode="json") for f in findings])
    else:
        rows = [(_MARK[f.state], f.name, f.found or "-", f.needed_for) for f in findings]
        console.result(
            console.table(("", "what", "found", "needed for"), rows, width=console.width())
        )
        for finding in findings:
            if finding.state != "ok" and finding.remedy:
                console.result(f"\n{finding.name}\n" + _indent(finding.remedy))
    missing = [f.name for f in findings if f.state == "missing"]
    if missing:
        raise BuildError(
            f"a run on this machine needs what is not installed: {', '.join(missing)}",
            remedy="Run the commands above, then run `etdeploy doctor` again.",
        )


_MARK = {"ok": "ok", "optional": "--", "missing": "!!"}


def _indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())
