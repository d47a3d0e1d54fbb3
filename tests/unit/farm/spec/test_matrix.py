"""Which recipe is measured on which device."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.farm.model import Offer
from etdeploy.farm.spec.matrix import NightPlan, pairs_of, plan_night
from etdeploy.farm.spec.model import DeviceGroup, Farm
from etdeploy.farm.spec.written import Matrix
from tests.support.farm_values import farm, group, phone

A, B = phone("A1"), phone("B2", soc="SM8650", model="Galaxy S24", os="Android 13")


def plan(of: Farm, *offers: Offer, window_s: float | None = None) -> NightPlan:
    return plan_night(of, "n", offers, window_s)


def reasons(of: Farm, *offers: Offer) -> list[str]:
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
    pairs = pairs_of(Matrix.model_validate(matrix), ["a", "b"], ["x", "y"])
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


def test_a_group_that_takes_some_leaves_open_which() -> None:
    found = plan(farm({"any": group(take=1, kind="android")}, repeats=2), A, B)
    assert [(v.device, v.among) for v in found.visits] == [(None, ("android-A1", "android-B2"))] * 2
    assert found.unsatisfied == ()


def test_a_group_that_takes_more_than_there_are() -> None:
    of = farm({"any": group(take=3, kind="android")}, repeats=1)
    found = plan(of, A, B)
    assert len(found.visits) == 2
    assert [u.reason for u in found.unsatisfied] == ["it takes 3 devices, and 2 devices match"]
    assert reasons(of, A) == ["it takes 3 devices, and 1 device matches"]


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


def test_no_device_at_all() -> None:
    assert reasons(farm({"phones": group(kind="android")})) == ["no device is connected"]


def test_a_device_that_does_not_exist_is_told_with_those_that_do() -> None:
    of = farm({"bench": group(name="android:B3")})
    assert reasons(of, A, B) == [
        "there is no device android:B3: did you mean android:B2? (there are android:A1, android:B2)"
    ]
    many = [phone(f"X{number:02d}") for number in range(20)]
    assert reasons(of, *many)[0].endswith("android:X06, android:X07 and 12 more)")


def test_what_comes_nearest_is_told() -> None:
    of = farm({"flagship": group(soc="SM8650", os=">=14")})
    assert reasons(of, A, B) == [
        "no device has soc SM8650, os >=14: android:A1 has soc Tensor G3; "
        "android:B2 has os Android 13"
    ]


def test_a_device_that_cannot_be_used_is_told_and_not_visited() -> None:
    broken = phone("A1", problem="its state is unauthorized")
    of = farm({"phones": group(kind="android")}, repeats=1)
    found = plan(of, broken, B)
    assert [v.device for v in found.visits] == ["android-B2"]
    assert [u.reason for u in found.unsatisfied] == [
        "android:A1 cannot be used: its state is unauthorized"
    ]
    # The same phone works on another host.
    assert plan(of, broken, A).unsatisfied == ()


TWIN, OTHER = "android:10.0.0.1:5555", "android:10.0.0.2:5555"


def also(name: str, *others: str, **facts: Any) -> Offer:
    """A phone that other names report the identity of, too."""
    known = phone("A1").facts.model_copy(update={"name": name, **facts})
    return phone("A1").model_copy(update={"name": name, "facts": known, "also": others})


@pytest.mark.parametrize(("wanted", "visits"), [(group(kind="android"), 1), (group(name=OTHER), 0)])
def test_a_phone_with_the_serial_number_of_another_is_named(
    wanted: DeviceGroup, visits: int
) -> None:
    offer = also(TWIN, OTHER)
    found = plan(farm({"phones": wanted}, repeats=1), offer)
    assert len(found.visits) == visits
    [reason] = [each.reason for each in found.unsatisfied]
    assert reason.startswith(f"{OTHER} reports the same serial number as {TWIN}")
    assert reasons(farm({"phones": group(name=TWIN)}), offer) == []


def test_a_phone_by_cable_and_network_is_one() -> None:
    offer = also("android:A1", OTHER)
    assert reasons(farm({"phones": group(kind="android")}), offer) == []
    [reason] = reasons(farm({"phones": group(name=OTHER)}), offer)
    assert reason.startswith(f"{OTHER} reports the same serial number as android:A1")


def test_a_board_by_another_name() -> None:
    offer = also("ssh:pi@a", "ssh:pi@b", serial=None, kind="ssh")
    assert reasons(farm({"boards": group(name="ssh:pi@b")}), offer) == [
        "ssh:pi@b is the same device as ssh:pi@a, which is measured by that name"
    ]


def test_every_pair_tells_its_own_reasons() -> None:
    found = plan(farm({"phones": group(soc="none")}, ("a", "b")), A).unsatisfied
    assert [(u.recipe, u.group) for u in found] == [("a", "phones"), ("b", "phones")]
