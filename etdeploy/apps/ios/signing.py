"""Who signs an app: a developer team, as the recipe, the environment or the keychain says.

In the keychain's list, what stands in brackets after `Apple Development` is the member's id, not
the team's: that is in the certificate, as its subject's organisational unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from etdeploy.core.blocker import Blocker

VARIABLES = ("ETDEPLOY_TEAM", "DEVELOPMENT_TEAM")
LIST_IDENTITIES = ("security", "find-identity", "-v", "-p", "codesigning")

_IDENTITY = re.compile(r'^\s*\d+\) (?P<digest>[0-9A-F]{40}) "(?P<name>[^"]+)"', re.MULTILINE)
_DEVELOPS = re.compile(r"(?:Apple Development|iPhone Developer): ")
_UNIT = re.compile(r"\bOU ?= ?(?P<team>[A-Z0-9]{10})\b")
_TEAM = re.compile(r"[A-Z0-9]{10}")


def identities(listed: str) -> tuple[str, ...]:
    """The names of the certificates that sign apps in development.

    Args:
        listed: What `LIST_IDENTITIES` printed; certificates whose key is gone are not in it.
    """
    names = (match["name"] for match in _IDENTITY.finditer(listed))
    return tuple(dict.fromkeys(name for name in names if _DEVELOPS.match(name)))


def certificate_command(name: str) -> tuple[str, ...]:
    """Prints a certificate of the keychain in PEM, for `subject_command`."""
    return ("security", "find-certificate", "-c", name, "-p")


def subject_command(certificate: str) -> tuple[str, ...]:
    """Prints the subject of a certificate in a file; OpenSSL's and LibreSSL's forms differ."""
    return ("openssl", "x509", "-noout", "-subject", "-in", certificate)


def team_of_subject(subject: str) -> str | None:
    """The team in `subject= /UID=.../CN=.../OU=ABCDE12345/...`; None if there is none."""
    found = _UNIT.search(subject)
    return found["team"] if found else None


def chosen_team(
    recipe: str | None, environ: Mapping[str, str], keychain: Callable[[], Iterable[str]]
) -> str | Blocker:
    """The id of the team that signs.

    Args:
        recipe: Its `app.team`.
        environ: The environment.
        keychain: Gives the teams of the keychain's certificates; asked only if nothing else says
            who signs.

    Returns:
        The team, or what is in the way.
    """
    named = [("app.team", recipe), *((name, environ.get(name)) for name in VARIABLES)]
    for place, team in named:
        if team:
            return team if _TEAM.fullmatch(team) else _malformed(place, team)
    found = sorted(set(keychain()))
    if len(found) == 1:
        return found[0]
    return _several(found) if found else _none()


def _malformed(place: str, team: str) -> Blocker:
    return Blocker(
        what="developer team",
        why=f"{place} is '{team}', and the id of a team has ten letters and digits, as in "
        "ABCDE12345",
        remedy="It is in Xcode, Settings, Accounts, or at developer.apple.com/account.",
    )


def _several(teams: list[str]) -> Blocker:
    return Blocker(
        what="developer team",
        why=f"the keychain has certificates of several teams: {', '.join(teams)}",
        remedy=f"Name the one that signs: --set app.team={teams[0]}",
    )


def _none() -> Blocker:
    return Blocker(
        what="developer team",
        why="nobody is there to sign the app: neither app.team nor "
        f"{' nor '.join(VARIABLES)} names a team, and the keychain has no certificate for "
        "development",
        remedy="Open Xcode, Settings, Accounts, and add your Apple ID (a free one will do); then "
        "Manage\nCertificates, +, Apple Development.",
    )
