"""The screen and its lock, as several versions of Android print them."""

from __future__ import annotations

import pytest

from etdeploy.devices.android.app_run import Screen, parse_state

_ON = "#power\n  mWakefulness=Awake\nDisplay Power: state=ON\n"
_OFF = "#power\n  mWakefulness=Dozing\nDisplay Power: state=DOZE\n"
_TRUST = '#trust\n User "%s" (id=%d, flags=0x13) (current): trusted=%d, trustManaged=1, %s\n'
# Android 8, HyperOS, and Android 6.
_POLICY_8 = """#policy
      showing=false
      secure=false
        mIsShowing=false
"""
_POLICY_HYPEROS = """#policy
  showing=true
  secure=true
    mIsShowing=true
"""
_POLICY_6 = (
    "#policy\n    mShowingLockscreen=%s mShowingDream=false mDreamingLockscreen=%s "
    "mDreamingSleepToken=null\n    mTopIsFullscreen=false isStatusBarKeyguard=%s\n"
)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (_ON + _TRUST % ("Owner", 0, 1, "deviceLocked=0") + _POLICY_8, Screen(True, False, False)),
        (
            _ON
            + _TRUST % ("机主", 0, 0, "deviceLocked=1, strongAuthRequired=0x0")
            + _POLICY_HYPEROS,
            Screen(True, True, True),
        ),
        # Shown, and a finger or a trusted place has unlocked it.
        (
            _ON + _TRUST % ("Owner", 0, 1, "deviceLocked=0") + _POLICY_HYPEROS,
            Screen(True, True, False),
        ),
        (_ON + "#trust\n" + _POLICY_HYPEROS, Screen(True, True, True)),
        (_ON + "#trust\n" + _POLICY_8, Screen(True, False, False)),
        (_OFF + "#trust\n" + _POLICY_6 % ("true", "true", "true"), Screen(False, True, None)),
        (_ON + "#trust\n" + _POLICY_6 % ("false", "false", "false"), Screen(True, False, None)),
        (_ON + "#trust\n#policy\n        mIsShowing=true\n", Screen(True, True, None)),
        ("#power\n#trust\n#policy\n", Screen(None, None, None)),
        # Another user's profile is locked, not the phone.
        (
            '#trust\n User "Work" (id=10): trusted=0, deviceLocked=1\n'
            ' User "Owner" (id=0) (current): trusted=1, deviceLocked=0\n',
            Screen(None, None, False),
        ),
    ],
)
def test_the_state_is_read(output: str, expected: Screen) -> None:
    assert parse_state(output) == expected
