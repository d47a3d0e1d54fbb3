"""What `etdeploy doctor` says of the backends of other packages."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.registry import GROUP, exporting_backends, plugged_backend
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import PluginError, UsageError
from etdeploy.core.finding import Finding
from etdeploy.core.plugins import plugin_names, plugin_owner


def plugged_findings(station: Workstation) -> Iterator[Finding]:
    """Each of them, with what it looks for itself, or why it cannot be used."""
    for name in plugin_names(GROUP):
        owner = plugin_owner(GROUP, name)
        if name in exporting_backends():
            why = f"{owner} has a backend {name!r}, and so has etdeploy, which uses its own."
            yield _finding(name, None, f"{why}\nTell its author, who can choose another name.")
            continue
        try:
            backend = plugged_backend(name)
        except UsageError as error:
            yield _finding(name, None, f"{error.message}\n{error.remedy}")
            continue
        yield _finding(name, owner, None)
        try:
            yield from backend.findings(station) if backend else ()
        except PluginError as error:
            yield _finding(f"{name}: its findings", None, str(error))


def _finding(name: str, found: str | None, remedy: str | None) -> Finding:
    return Finding(
        name=f"backend {name}",
        state="ok" if found else "optional",
        found=found,
        needed_for="recipes and programs that name it",
        remedy=remedy,
    )
