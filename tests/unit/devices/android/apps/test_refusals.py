"""What `pm install` says, as users of several makers' phones have published it."""

from __future__ import annotations

import pytest

from etdeploy.devices.android.diagnostics import explain_install, has_installed, is_unreadable

_SAID = [
    (
        "Failure [INSTALL_FAILED_VERSION_DOWNGRADE]",
        "a newer version of org.example.a is installed (INSTALL_FAILED_VERSION_DOWNGRADE)",
        "adb -s A1 uninstall org.example.a",
    ),
    (
        "Failure [INSTALL_FAILED_VERSION_DOWNGRADE: Downgrade detected: Update version code 1 is "
        "older than current 2]",
        "Update version code 1 is older than current 2",
        "higher version code",
    ),
    (
        "Failure [INSTALL_FAILED_UPDATE_INCOMPATIBLE: Existing package org.example.a signatures do "
        "not match newer version; ignoring!]",
        "signed with another key",
        "adb -s A1 uninstall org.example.a",
    ),
    (
        "\tpkg: /data/local/tmp/a\nFailure [INSTALL_PARSE_FAILED_INCONSISTENT_CERTIFICATES]",
        "signed with another key",
        "another id",
    ),
    (
        "Failure [INSTALL_FAILED_INSUFFICIENT_STORAGE: Failed to override installation location]",
        "no room for org.example.a",
        "etdeploy clean --device android:A1",
    ),
    (
        "Failure [INSTALL_FAILED_USER_RESTRICTED: Install canceled by user]",
        "settings do not let adb install org.example.a",
        "Install via USB",
    ),
    (
        "Failure [INSTALL_FAILED_ABORTED: User rejected permissions]",
        "declined or cancelled",
        "Monitor ADB installs",
    ),
    (
        "Failure [INSTALL_FAILED_NO_MATCHING_ABIS: Failed to extract native libraries, res=-113]",
        "none for this device's processor",
        "adb -s A1 shell getprop ro.product.cpu.abilist",
    ),
    (
        "Failure [INSTALL_FAILED_OLDER_SDK: Failed parse during installPackageLI: Requires newer "
        "sdk version #28 (current version is #23)]",
        "older than the oldest",
        "adb -s A1 shell getprop ro.build.version.sdk",
    ),
    (
        "Failure [INSTALL_FAILED_DEPRECATED_SDK_VERSION: App package must target at least SDK "
        "version 24, but found 22]",
        "too old for this device",
        "target version",
    ),
    (
        "Failure [INSTALL_FAILED_TEST_ONLY: installPackageLI]",
        "for tests only",
        "android:testOnly",
    ),
    (
        "Failure [INSTALL_FAILED_INVALID_APK: Failed to extract native libraries, res=-2]",
        "cannot read the app's file",
        "apksigner verify --verbose '/a b/app.apk'",
    ),
    (
        "Failure [INSTALL_PARSE_FAILED_NOT_APK: Failed to parse "
        "/data/app/vmdl1717912594.tmp/base.apk]",
        "cannot read the app's file",
        "Build the app again",
    ),
    (
        "Failure [INSTALL_PARSE_FAILED_NO_CERTIFICATES:\n Failed to collect certificates from "
        "/data/app/vmdl1917125948.tmp/base.apk: Attempt to get length of null array]",
        "is not signed",
        "apksigner verify",
    ),
    (
        "Failure [INSTALL_PARSE_FAILED_MANIFEST_MALFORMED: Failed parse during installPackageLI: "
        "/data/base.apk (at Binary XML file line #173)]",
        "cannot read the app's file (INSTALL_PARSE_FAILED_MANIFEST_MALFORMED: Failed parse",
        "Build the app again",
    ),
    (
        "Failure [INSTALL_FAILED_VERIFICATION_FAILURE: Package Verification Result]",
        "Play Protect",
        "Verify apps over USB",
    ),
    ("Failure [INSTALL_FAILED_WEIRD]", "did not install", "adb -s A1 install -r -t '/a b/app.apk'"),
    (
        "Error: java.lang.SecurityException: no",
        "(Error: java.lang.SecurityException: no)",
        "by hand",
    ),
    ("", "no output", "by hand"),
]


@pytest.mark.parametrize(("said", "message", "remedy"), _SAID, ids=lambda text: text[:40])
def test_each_refusal_has_a_message_and_a_remedy(said: str, message: str, remedy: str) -> None:
    error = explain_install(f"{said}\n", "org.example.a", "/a b/app.apk", "android:A1")
    assert message in error.message
    assert remedy in str(error.remedy)
    assert error.place == "android:A1"
    assert not has_installed(said)


@pytest.mark.parametrize(
    ("said", "is_it"),
    [
        (
            "System server has no access to read file context u:object_r:fuse:s0\n"
            "Error: Unable to open file: /data/local/tmp/x\n",
            True,
        ),
        ("Error: Can't open file: /data/local/tmp/x", True),
        ("java.io.FileNotFoundException: /a: open failed: EACCES (Permission denied)", True),
        ("Failure [INSTALL_FAILED_INVALID_APK: failed to open /a]", False),
        ("Failure [INSTALL_FAILED_INSUFFICIENT_STORAGE]", False),
    ],
)
def test_only_a_file_that_cannot_be_opened_goes_another_way(said: str, is_it: bool) -> None:
    assert is_unreadable(said) is is_it
