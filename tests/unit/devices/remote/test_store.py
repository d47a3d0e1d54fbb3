"""What makes room on a remote device, and what never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.devices.base import Bundle, BundleFile, ProcessLaunch
from etdeploy.devices.remote.layout import StoreState
from etdeploy.devices.remote.shell import DevicePaths
from etdeploy.devices.remote.store import (
    StoreRemoval,
    StoreUses,
    limit_bytes,
    parse_uses,
    removal,
    removal_command,
)

NOW_S = 1_000_000


def sha(letter: str) -> str:
    return letter * 64


def bundle(letters: str, size_bytes: int = 10) -> Bundle:
    files = (
        BundleFile(source="x", path=letter, sha256=sha(letter), size_bytes=size_bytes)
        for letter in letters
    )
    return Bundle(files=tuple(files), launch=ProcessLaunch(argv=("x",)))


def survey(letters: str, free_bytes: int | None = 1000) -> StoreState:
    return StoreState(free_bytes, stamps={sha(x): "10 1 644 a b" for x in letters})


def uses(live: str = "", **bundles: str) -> StoreUses:
    """Bundles by name in the order of their last use, long ago, with their contents."""
    return StoreUses(
        now_s=NOW_S,
        last_s={name: 1000 + i for i, name in enumerate(bundles)},
        contents={name: frozenset(map(sha, letters)) for name, letters in bundles.items()},
        live=frozenset(live.split()),
    )


def gone(found: StoreRemoval) -> tuple[tuple[str, ...], str]:
    return found.bundles, "".join(sorted(sha256[0] for sha256 in found.contents))


def test_below_the_bound_nothing_goes() -> None:
    known = uses(one="a", two="b")
    assert removal(survey("abc"), known, bundle("d"), "new", 40) == StoreRemoval()
    assert removal(survey("abc"), known, bundle("d"), "new", None) == StoreRemoval()


def test_what_no_bundle_uses_goes_first_and_then_what_was_used_longest_ago() -> None:
    known = uses(one="a", two="b", three="c")
    found = removal(survey("abcz"), known, bundle("d"), "new", 40)
    assert (gone(found), found.size_bytes) == (((), "z"), 10)
    found = removal(survey("abcz"), known, bundle("d"), "new", 25)
    assert (gone(found), found.size_bytes) == ((("one", "two"), "abz"), 30)


def test_what_another_bundle_uses_too_stays() -> None:
    known = uses(one="ax", two="bx", three="c")
    assert gone(removal(survey("abcx"), known, bundle("d"), "new", 40)) == (("one",), "a")
    assert gone(removal(survey("abcx"), known, bundle("d"), "new", 30)) == (("one", "two"), "abx")


def test_what_is_pushed_or_in_use_never_goes() -> None:
    known = uses(f"two {sha('c')}", one="a", two="b", three="c", own="d")
    found = removal(survey("abcd"), known, bundle("de"), "own", 1)
    assert gone(found) == (("one", "three"), "a")
    young = StoreUses(now_s=1500, last_s=known.last_s, contents=known.contents)
    assert removal(survey("abcd"), young, bundle("de"), "own", 1) == StoreRemoval()


@pytest.mark.parametrize("now_s", [None, 0, 900])
def test_a_device_without_a_sound_clock_still_makes_room(now_s: int | None) -> None:
    known = uses(one="a", two="b")
    odd = StoreUses(now_s=now_s, last_s=known.last_s, contents=known.contents)
    assert gone(removal(survey("ab"), odd, bundle("d"), "new", 20)) == (("one",), "a")


def test_a_device_that_is_full_makes_room_below_the_bound() -> None:
    known = uses(one="a", two="b")
    found = removal(survey("ab", free_bytes=5), known, bundle("d", 12), "new", 8_000)
    assert gone(found) == (("one",), "a")


def test_uses_are_read_and_removal_spares_pushes_that_began_meanwhile() -> None:
    output = (
        f"#now\n{NOW_S}\n#uses\n{sha('1')} 77\nstat: '*': No such file\n"
        f"#contents\n{sha('1')}:{sha('a')}\n{sha('1')}:{sha('b')}\n#live\n{sha('2')}\n{sha('c')}\n"
    )
    assert parse_uses(output) == StoreUses(
        now_s=NOW_S,
        last_s={sha("1"): 77},
        contents={sha("1"): frozenset({sha("a"), sha("b")})},
        live=frozenset({sha("2"), sha("c")}),
    )
    assert parse_uses("") == StoreUses()
    command = removal_command(DevicePaths("/base"), StoreRemoval((sha("1"),), (sha("a"),), 10))
    assert f"rm -rf bundles/{sha('1')} uses/{sha('1')}" in command
    assert "grep -qs $s incoming/*/uses || rm -f store/$s stamps/$s" in command


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("", 8_000_000_000), ("20 GB", 20_000_000_000), ("0", None), ("none", None)],
)
def test_the_bound_can_be_set(
    monkeypatch: pytest.MonkeyPatch, text: str, size_bytes: int | None
) -> None:
    monkeypatch.setenv("ETDEPLOY_DEVICE_STORE_MAX", text)
    assert limit_bytes() == size_bytes
    monkeypatch.setenv("ETDEPLOY_DEVICE_STORE_MAX", "much")
    with pytest.raises(UsageError, match="is not a size"):
        limit_bytes()


def test_what_interrupted_pushes_sent_of_other_files_goes_first() -> None:
    known = uses(one="a")
    begun = replace(survey("a"), partial={sha("x"): 7, sha("d"): 4})
    # 10 + 7 + 4 are there, and 6 are missing of d.
    assert removal(begun, known, bundle("d"), "new", 27) == StoreRemoval()
    found = removal(begun, known, bundle("d"), "new", 26)
    assert found == StoreRemoval(size_bytes=7, partial=(sha("x"),))
    found = removal(begun, known, bundle("d"), "new", 15)
    assert (gone(found), found.size_bytes, found.partial) == ((("one",), "a"), 17, (sha("x"),))
    assert f"rm -f partial/{sha('x')}" in removal_command(DevicePaths("/d"), found)
