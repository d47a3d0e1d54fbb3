"""Signs an APK with the debug key, as Android Studio does."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from etdeploy.apps.android.parts.tool import JAVA_OPTIONS, run_tool
from etdeploy.apps.android.tools.jdk import Jdk
from etdeploy.apps.android.tools.sdk import Sdk
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import BuildError

# What every tool for Android calls them; the key protects nothing.
_PASSWORD = "android"  # noqa: S105
_ALIAS = "androiddebugkey"
_NAME = "CN=Android Debug,O=Android,C=US"
_VALID_DAYS = "10950"
_KEYSTORE = "debug.keystore"
_USER_HOME = "ANDROID_USER_HOME"
_SIGNER = "com.android.apksigner.ApkSignerTool"


def debug_keystore(station: Workstation) -> Path:
    """Where Android's tools keep the user's debug key.

    Gradle signs with the same, so that each app of one replaces one of the other on a phone.
    """
    named = station.environ.get(_USER_HOME)
    return (Path(named).expanduser() if named else station.home / ".android") / _KEYSTORE


def require_keystore(station: Workstation, jdk: Jdk, log: Path | None) -> Path:
    """The debug keystore, made if there is none; one that is there is never touched.

    Raises:
        BuildError: It cannot be made.
    """
    keystore = debug_keystore(station)
    if keystore.is_file():
        return keystore
    try:
        keystore.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".key.", dir=keystore.parent) as folder:
            made = Path(folder) / _KEYSTORE
            _make_key(jdk, made, log)
            # Fails if another process was faster, whose key is as good.
            if not keystore.is_file():
                os.link(made, keystore)
    except FileExistsError:
        pass
    except OSError as error:
        raise BuildError(
            f"the debug key cannot be written to {keystore}: {error.strerror}",
            remedy=f"Name another folder: export {_USER_HOME}=/path/to/a/folder",
        ) from error
    return keystore


def _make_key(jdk: Jdk, keystore: Path, log: Path | None) -> None:
    argv = (
        jdk.program("keytool"), "-genkeypair", "-keystore", keystore, "-storetype", "PKCS12",
        "-storepass", _PASSWORD, "-keypass", _PASSWORD, "-alias", _ALIAS, "-keyalg", "RSA",
        "-keysize", "2048", "-validity", _VALID_DAYS, "-dname", _NAME,
    )  # fmt: skip
    run_tool("making the debug key", argv, log)


def sign(
    jdk: Jdk, sdk: Sdk, keystore: Path, min_sdk: int, unsigned: Path, signed: Path, log: Path | None
) -> None:
    """Signs an APK by the schemes v1, v2 and v3.

    Raises:
        BuildError: With apksigner's first complaints.
    """
    argv = (
        *_apksigner(jdk, sdk), "sign", "--ks", keystore, "--ks-pass", f"pass:{_PASSWORD}",
        "--key-pass", f"pass:{_PASSWORD}", "--ks-key-alias", _ALIAS,
        "--min-sdk-version", min_sdk, "--v1-signing-enabled", "true",
        "--v2-signing-enabled", "true", "--v3-signing-enabled", "true",
        "--v4-signing-enabled", "false", "--out", signed, unsigned,
    )  # fmt: skip
    try:
        run_tool("signing the app", argv, log)
    except BuildError as error:
        if "password was incorrect" not in error.message and _ALIAS not in error.message:
            raise
        raise BuildError(
            f"{keystore} is not a debug key: its password or its key's name are others",
            remedy=f"Move it elsewhere, and a new one is made; or export {_USER_HOME}=/a/folder",
            log=log,
        ) from error


def verify_signature(jdk: Jdk, sdk: Sdk, apk: Path, log: Path | None = None) -> str:
    """What apksigner says of a signed APK: its schemes and its certificate.

    Raises:
        BuildError: The APK is not signed, or was changed afterwards.
    """
    argv = (*_apksigner(jdk, sdk), "verify", "--verbose", "--print-certs", apk)
    return run_tool("verifying the app's signature", argv, log)


def _apksigner(jdk: Jdk, sdk: Sdk) -> tuple[object, ...]:
    return (jdk.program("java"), *JAVA_OPTIONS, "-cp", sdk.apksigner, _SIGNER)
