"""How an app is called on a device, and where its files are; all pure."""

from __future__ import annotations

import re

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+")


def check_app_id(app_id: str) -> str:
    """`app_id` itself when it is an application id, which needs no quotes in a shell.

    Raises:
        ValueError: It is not.
    """
    if not _ID.fullmatch(app_id) or len(app_id) > 200:
        raise ValueError(f"{app_id!r} is no application id")
    return app_id


def activity(app_id: str) -> str:
    """What `am start -n` starts."""
    return f"{app_id}/.MainActivity"


def external_files(app_id: str) -> str:
    """The folder of getExternalFilesDir(), which adb's user may read."""
    return f"/sdcard/Android/data/{app_id}/files"


def stop_command(app_id: str) -> str:
    """Ends the app; its data stay."""
    return f"am force-stop {app_id}"
