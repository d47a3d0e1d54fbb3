"""The key by which a device recognises this computer: the one that the adb program uses."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from etdeploy.devices.adb.errors import AdbKeyError


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
        AdbKeyError: The key cannot be read or created, or is not an RSA key without a password.
    """
    try:
        return _signer(path)
    except IsADirectoryError as error:
        raise AdbKeyError(path, "it is a folder", broken=True) from error
    except OSError as error:
        why = f"{error.filename or path}: {error.strerror or error}"
        raise AdbKeyError(path, why, broken=False) from error
    except (ValueError, TypeError) as error:
        # The libraries' own messages are several lines long.
        why = "it does not hold an RSA key in PEM format without a password"
        raise AdbKeyError(path, why, broken=True) from error


def _signer(path: Path) -> Signer:
    from adb_shell.auth.keygen import keygen, write_public_keyfile
    from adb_shell.auth.sign_cryptography import CryptographySigner

    public = path.with_name(path.name + ".pub")
    if not path.exists():
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _make_key(path, keygen)
    _require_rsa(path)
    if not public.is_file():
        write_public_keyfile(str(path), str(public))
    signer: Signer = CryptographySigner(str(path))
    return signer


def _require_rsa(path: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, RSAPrivateKey):
        raise ValueError(f"a key of the kind {type(key).__name__}")


def _make_key(path: Path, generate: Callable[[str], None]) -> None:
    """Makes the key in a private folder, so that it is never readable by others or half written."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        generate(str(new))
        new.chmod(0o600)
        # Another process may have made one meanwhile: that one stays.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
