"""The first files of a farm, from templates: pure functions of the devices and folders here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timezone as zones
from pathlib import Path
from zoneinfo import ZoneInfo

from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import find_disk_full, resource_folder, write_atomic
from etdeploy.devices.base import DeviceListing

FARM = "farm.yaml"
WORKFLOW = ".github/workflows/farm.yml"
_RESULTS = "farm-results"
_USABLE = "device"
# A timer starts the night; without a window that is when it begins.
_AT = "21:55"


@dataclass(frozen=True)
class GroupText:
    """A group of devices, as text of farm.yaml."""

    name: str
    properties: str
    comment: str = ""


@dataclass(frozen=True)
class FarmSite:
    """This machine, as the first files of a farm describe it.

    Attributes:
        folder: Where the files go, absolute.
        command: The etdeploy that runs, absolute.
        repository: The top of the git repository of the folder; without one, the folder itself.
        timezone: The IANA name; None if unknown.
        recipe: A bundled recipe.
    """

    folder: Path
    devices: Sequence[DeviceListing]
    command: Path
    repository: Path
    timezone: str | None
    recipe: str


def farm_files(site: FarmSite) -> dict[Path, str]:
    """Render every file, by its absolute path."""
    if not str(site.folder).isprintable():
        raise UsageError("the folder has a line break in its path", place=repr(str(site.folder)))
    name = _name(site.folder.name)
    farm = site.folder / FARM
    in_repository = site.folder.relative_to(site.repository).as_posix()
    prefix = "" if in_repository == "." else f"{in_repository}/"
    groups = groups_of(site.devices)
    units = site.folder / "systemd"
    unit = f"etdeploy-{name}"
    values = {
        "name": name,
        "file": FARM,
        "recipe": site.recipe,
        "groups": groups,
        # This machine alone can be measured at any time; phones are used by day.
        "timed": any(group.name != "here" for group in groups),
        "timezone": site.timezone,
        "farm": f"{prefix}{FARM}",
        "results": f"{prefix}{_RESULTS}",
        "folder": str(site.folder),
        "command": str(site.command),
        "at": _AT,
        "cron": cron_of(site.timezone),
        "install": _install(units, unit),
    }
    return {
        farm: _rendered("farm.yaml.j2", values),
        site.repository / WORKFLOW: _rendered("workflow.yml.j2", values),
        units / f"{unit}.service": _rendered("service.j2", values | {"file": str(farm)}),
        units / f"{unit}.timer": _rendered("timer.j2", values),
    }


def groups_of(devices: Iterable[DeviceListing]) -> list[GroupText]:
    """A group for each connected device, usable or not; this machine where there is none."""
    found: list[GroupText] = []
    for device in devices:
        if device.kind in ("host", "qemu"):
            continue
        model = device.facts.model if device.facts else None
        wanted = _name(model or device.name.replace(":", "-")).lower()
        names = {group.name for group in found}
        name = next(
            n for n in (wanted, *(f"{wanted}-{i}" for i in range(2, 1000))) if n not in names
        )
        state = "" if device.status == _USABLE else f"now: {device.status}"
        found.append(GroupText(name, f"name: {_yaml(device.name)}", state))
    return found or [GroupText("here", "name: host", "no phone or board is connected")]


def cron_of(timezone: str | None) -> str:
    """When a workflow starts, in UTC, as its clock has it: just before ten in the evening here.

    Where the clock is set back in winter, it starts an hour earlier then, and waits for the window.
    """
    zone = ZoneInfo(timezone) if timezone else zones.utc
    hour, minute = map(int, _AT.split(":"))
    here = [datetime(2026, month, 2, hour, minute, tzinfo=zone) for month in (1, 7)]
    ahead = max(each.replace(tzinfo=zones.utc) - each for each in here)
    start = here[0].replace(tzinfo=zones.utc) - ahead
    return f"{start.minute} {start.hour} * * *"


def _install(units: Path, unit: str) -> list[str]:
    files = " ".join(quoted(units / f"{unit}.{kind}") for kind in ("service", "timer"))
    return [
        "mkdir -p ~/.config/systemd/user",
        f"cp {files} ~/.config/systemd/user/",
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {unit}.timer",
        f"systemctl --user start --no-block {unit}.service   # now already: it waits for a window",
        f"journalctl --user -u {unit} -f   # what it says",
    ]


def _rendered(template: str, values: dict[str, object]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # YAML and units are not HTML; filters escape values.
    environment = Environment(
        loader=FileSystemLoader(resource_folder("templates") / "farm"),
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"unit": unit_text, "unit_word": unit_word, "shell": quoted}
    return environment.get_template(template).render(values)


def unit_text(text: str) -> str:
    """A value in a unit file: `%` begins a specifier there (systemd.unit(5))."""
    return text.replace("%", "%%")


def unit_word(text: str) -> str:
    """One word of a command in a unit file, by the rules of systemd.service(5)."""
    escaped = unit_text(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_./:=@%+-]", text) else escaped


def _yaml(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(text: str) -> str:
    """The text as a name that farm.yaml accepts."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:64].strip("-._")
    return name or "farm"


def write_new(files: Mapping[Path, str]) -> list[Path]:
    """Write the files that do not exist yet, and return their paths.

    Raises:
        UsageError: One exists with another content, or cannot be written; none was changed then.
        OSError: The disk is full.
    """
    try:
        new = [path for path, text in files.items() if not _is_there(path, text)]
        for path in new:
            path.parent.mkdir(parents=True, exist_ok=True)
        for path in new:
            write_atomic(path, files[path])
    except OSError as error:
        if find_disk_full(error):
            raise
        raise UsageError(
            f"cannot write the files of the farm: {error.strerror or error}",
            place=error.filename and str(error.filename),
            remedy="Name another folder: etdeploy farm init FOLDER",
        ) from error
    return new


def _is_there(path: Path, text: str) -> bool:
    """Whether a file exists with this text; a UsageError for another text."""
    if not os.path.lexists(path):
        return False
    if path.is_file() and path.read_bytes() == text.encode():
        return True
    raise UsageError(
        "this file exists already; nothing was written",
        place=str(path),
        remedy="Rename or remove it, or name another folder: etdeploy farm init FOLDER",
    )
