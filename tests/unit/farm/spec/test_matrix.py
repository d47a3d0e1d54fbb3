"""Which recipe is measured on which device."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.farm.model import AvailableDevice
from etdeploy.farm.spec.matrix import NightPlan, plan_night, select_pairs
from etdeploy.farm.spec.model import DeviceGroup, Farm
from etdeploy.farm.spec.written import Matrix
from tests.support.farm_values import farm, group, phone

A, B = phone("A1"), phone("B2", soc="SM8650", model="Galaxy S24", os="Android 13")


def plan(of: Farm, *offers: AvailableDevice, window_s: float | None = None) -> NightPlan:
    return plan_night(of, "n", offers, window_s)


def reasons(of: Farm, *offers: AvailableDevice) -> list[str]:
    return [each.reason for each in plan(of, *offers).unsatisfied]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ({}, "ax ay bx by"),
        ({"exclude": [{"recipe": "a", "device": "x"}]}, "ay bx by"),
        ({"exclude": [{"device": "*"}]}, ""),
        ({"exclude": [{"device": "x"}], "include": [{"recipe": "b", "device": "x"}]}, "ay bx by"),
        ({"default": "none", "include": [{"recipe": "a"}]}, "ax ay"),
        ({"default": "none"}, ""),
    ],
)
def test_the_matrix(matrix: dict[str, Any], expected: str) -> None:
    pairs = select_pairs(Matrix.model_validate(matrix), ["a", "b"], ["x", "y"])
    assert " ".join(map("".join, pairs)) == expected


def test_each_device_of_a_group_is_visited_in_every_repeat() -> None:
    found = plan(farm({"phones": group(kind="android")}, ("a", "b"), repeats=2), B, A).visits
    assert [(v.recipe, v.device, v.repeat) for v in found] == [
        ("a", "android-A1", 1), ("a", "android-B2", 1), ("b", "android-A1", 1),
        ("b", "android-B2", 1), ("b", "android-A1", 2), ("b", "android-B2", 2),
        ("a", "android-A1", 2), ("a", "android-B2", 2),
    ]  # fmt: skip
    assert [v.id for v in found] == [f"n-{number}" for number in range(1, 9)]
    assert all(v.among == (v.device,) for v in found)


def test_a_group_that_takes_more_than_there_are() -> None:
    of = farm({"any": group(take=3, kind="android")}, repeats=1)
    both = ("android-A1", "android-B2")
    assert [(v.device, v.among) for v in plan(of, A, B).visits] == [(None, both)] * 2
    assert reasons(of, A, B)[0].endswith("and 2 devices match")
    assert reasons(of, A)[0].endswith("and 1 device matches")


def test_repeats_are_spread_over_the_window() -> None:
    of = farm({"phones": group(kind="android")}, repeats=3)
    assert [v.not_before_s for v in plan(of, A, window_s=900).visits] == [0, 300, 600]
    assert [v.not_before_s for v in plan(of, A).visits] == [0, 0, 0]
    calm = of.model_copy(update={"spread": False})
    assert [v.not_before_s for v in plan(calm, A, window_s=900).visits] == [0, 0, 0]


def test_a_device_of_two_hosts_and_two_groups_is_measured_once() -> None:
    of = farm({"pixels": group(model="Pixel*"), "phones": group(kind="android")}, repeats=1)
    found = plan(of, A, A.model_copy(update={"host": "other"}), B).visits
    assert [(v.group, v.device) for v in found] == [
        ("pixels", "android-A1"),
        ("phones", "android-B2"),
    ]


PHONES = {"phones": group(kind="android")}
MANY = [phone(f"X{number:02d}") for number in range(20)]
TWIN, OTHER = "android:10.0.0.1:5555", "android:10.0.0.2:5555"


def also(name: str, *others: str, **facts: Any) -> AvailableDevice:
    """A phone that other names report the identity of, too."""
    known = phone("A1").facts.model_copy(update={"name": name, **facts})
    return phone("A1").model_copy(update={"name": name, "facts": known, "also": others})


@pytest.mark.parametrize(
    ("wanted", "offers", "facts"),
    [
        (group(kind="android"), [], ("no device",)),
        (group(name="android:B3"), [A, B], ("android:B3", "mean android:B2?", "android:A1, ")),
        (group(name="android:B3"), MANY, ("android:X07 and 12 more",)),
        # Those that come nearest, with what they lack.
        (group(soc="SM8650", os=">=14"), [A, B],
         ("soc SM8650, os >=14", "android:A1 has soc Tensor G3", "android:B2 has os Android 13")),
        (group(name="ssh:pi@b"), [also("ssh:pi@a", "ssh:pi@b", serial=None, kind="ssh")],
         ("ssh:pi@b is", "same device", "ssh:pi@a")),
        (group(name=OTHER), [also(TWIN, OTHER)], (OTHER, "serial number", f"as {TWIN}")),
        (group(kind="android"), [also(TWIN, OTHER)], (OTHER, "serial number", f"as {TWIN}")),
        # By cable and by network it is one phone.
        (group(name=OTHER), [also("android:A1", OTHER)], (OTHER, "serial number", "android:A1")),
        (group(kind="android"), [also("android:A1", OTHER)], ()),
        (group(name=TWIN), [also(TWIN, OTHER)], ()),
    ],
)  # fmt: skip
def test_why_a_group_is_not_measured(
    wanted: DeviceGroup, offers: list[AvailableDevice], facts: tuple[str, ...]
) -> None:
    found = reasons(farm({"it": wanted}), *offers)
    assert len(found) == bool(facts)
    assert all(fact in found[0] for fact in facts)


def test_a_device_that_cannot_be_used_is_named_and_not_visited() -> None:
    broken = phone("A1", problem="its state is unauthorized")
    found = plan(farm(PHONES, repeats=1), broken, B)
    assert [v.device for v in found.visits] == ["android-B2"]
    [reason] = [each.reason for each in found.unsatisfied]
    assert reason.startswith("android:A1 ")
    assert reason.endswith(broken.problem)
    # The same phone works on another host.
    assert plan(farm(PHONES, repeats=1), broken, A).unsatisfied == ()


def test_devices_that_a_farm_names_are_expected_by_name() -> None:
    pools = {"nightly": ("android:A1", "android:B2", "ssh:pi@b")}
    of = farm({"shelf": group(pool="nightly")}, repeats=1, pools=pools)
    found = plan(of, phone("A1", pools=("nightly",)))
    assert [v.device for v in found.visits] == ["android-A1"]
    assert [u.device for u in found.unsatisfied] == ["android:B2", "ssh:pi@b"]
    assert found.unsatisfied[1].reason.startswith("there is no device ssh:pi@b")
    assert [u.device for u in plan(of).unsatisfied] == list(pools["nightly"])
    assert [u.device for u in plan(farm({"bench": group(name="android:X")})).unsatisfied] == [
        "android:X"
    ]
    # A group that takes any two, or names properties, expects nobody.
    for wanted in (group(pool="nightly", take=1), group(pool="nightly", soc="SM8650")):
        found = plan(farm({"any": wanted}, pools=pools), phone("A1", pools=("nightly",), soc="x"))
        assert not any(u.device for u in found.unsatisfied)


def test_every_pair_has_its_reasons() -> None:
    found = plan(farm({"phones": group(soc="none")}, ("a", "b")), A).unsatisfied
    assert [(u.recipe, u.group) for u in found] == [("a", "phones"), ("b", "phones")]
