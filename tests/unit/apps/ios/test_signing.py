"""Whose signature an app gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.ios.xcode import choose_team, identities, parse_team
from etdeploy.core.errors import Blocker

_DATA = Path(__file__).parents[3] / "data/ios"
_TEAM = "ABCDE12345"


def _nobody() -> tuple[str, ...]:
    raise AssertionError("the keychain is asked although a team is named")


def test_the_recipe_then_the_environment_then_the_keychain() -> None:
    environ = {"ETDEPLOY_TEAM": "ENV0000001", "DEVELOPMENT_TEAM": "ENV0000002"}
    assert choose_team(_TEAM, environ, _nobody) == _TEAM
    assert choose_team(None, environ, _nobody) == "ENV0000001"
    assert choose_team(None, {"DEVELOPMENT_TEAM": "ENV0000002"}, _nobody) == "ENV0000002"
    assert choose_team(None, {}, lambda: (_TEAM, _TEAM)) == _TEAM


@pytest.mark.parametrize(
    ("recipe", "environ", "keychain", "why"),
    [
        ("ABC", {}, (), "app.team is 'ABC'"),
        (None, {"ETDEPLOY_TEAM": "abcde12345"}, (), "ETDEPLOY_TEAM is 'abcde12345'"),
        (None, {}, ("TEAM000002", "TEAM000001"), "several teams: TEAM000001, TEAM000002"),
        (None, {}, (), "ETDEPLOY_TEAM"),
    ],
)
def test_what_is_missing_is_told(
    recipe: str | None, environ: dict[str, str], keychain: tuple[str, ...], why: str
) -> None:
    found = choose_team(recipe, environ, lambda: keychain)
    assert isinstance(found, Blocker)
    assert why in found.why


def test_certificates_for_development_are_found_in_the_keychains_list() -> None:
    listed = (_DATA / "find-identity.txt").read_text()
    found = identities(listed)
    assert [name.split(":")[0] for name in found] == ["iPhone Developer", "Apple Development"]
    assert [name.rpartition("(")[2] for name in found] == ["T5X7QWERMX)", "2XYVHABL7X)"]
    assert identities("     0 valid\n") == ()


@pytest.mark.parametrize(
    "subject",
    [
        "subject= /UID=A1B2C3D4E5/CN=Apple Development: J (2XYVHABL7X)/OU=ABCDE12345/O=J/C=US",
        'subject=UID = A1B2C3D4E5, CN = "Apple Development: J (2XYVHABL7X)", OU = ABCDE12345',
        "subject=UID=A1B2C3D4E5, CN=Apple Development: J (2XYVHABL7X), OU=ABCDE12345, O=J, C=US",
    ],
)
def test_the_team_is_the_certificates_unit_and_not_the_id_in_brackets(subject: str) -> None:
    assert parse_team(subject) == _TEAM


def test_a_certificate_without_a_team() -> None:
    assert parse_team("subject= /CN=Somebody") is None
