"""The key by which a device knows this computer: the same that the adb program uses."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Signer(Protocol):
    """Signs a device's challenge."""

    def Sign(self, data: bytes) -> bytes: ...  # noqa: N802 - named by adb-shell

    def GetPublicKey(self) -> bytes: ...  # noqa: N802 - named by adb-shell


def key_path() -> Path:
    """The private key's path, the adb program's own."""
    folder = os.environ.get("ANDROID_USER_HOME")
    return (Path(folder) if folder else Path.home() / ".android") / "adbkey"


def user_signer(path: Path) -> Signer:
    """The user's key; a new one is made when there is none, readable by the user alone.

    Raises:
        OSError, ValueError: The key cannot be read or made.
    """
    from adb_shell.auth.keygen import keygen, write_public_keyfile
    from adb_shell.auth.sign_cryptography import CryptographySigner

    public = path.with_name(path.name + ".pub")
    if not path.is_file():
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _make_key(path, keygen)
    if not public.is_file():
        write_public_keyfile(str(path), str(public))
    signer: Signer = CryptographySigner(str(path))
    return signer


def _make_key(path: Path, generate: Callable[[str], None]) -> None:
    """Makes the key in a private folder, so that it is never readable by others nor half there."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        generate(str(new))
        new.chmod(0o600)
        # Another process may have made one meanwhile: that one stays.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
