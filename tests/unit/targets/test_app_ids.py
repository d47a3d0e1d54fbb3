"""Which ids Android accepts."""

from __future__ import annotations

import pytest

from etdeploy.targets.platforms import android_id_problem, suggested_segment


@pytest.mark.parametrize(
    "app_id",
    [
        "org.example.model",
        "a.b",
        "com.Example_1.x2.y",
        "org.pytorch.executorch2",
        "org.pytorch",
        "javanese.model",
        "com.example.executorch",
    ],
)
def test_an_id_of_android_is_accepted(app_id: str) -> None:
    assert android_id_problem(app_id) is None


@pytest.mark.parametrize(
    ("app_id", "words"),
    [
        ("model", "no dot"),
        ("", "no dot"),
        ("org..model", "''"),
        ("org.1model", "'1model'"),
        ("org.my-model", "'my-model'"),
        ("org.modèle", "'modèle'"),
        ("org.new.model", "'new' is a word of Java or Kotlin"),
        ("org.when", "'when' is a word of Java or Kotlin"),
        ("org.example/../x", "'example/'"),
        ("org." + "x" * 200, "204 characters"),
        ("org.pytorch.executorch", "package org.pytorch.executorch is not the app's own"),
        ("Org.PyTorch.ExecuTorch.demo", "package org.pytorch.executorch is not the app's own"),
        ("androidx.model", "package androidx is not the app's own"),
        ("java.model", "package java is not the app's own"),
        ("org.example.aux", "'aux' is a device's name on Windows"),
        ("org.Com1.model", "'Com1' is a device's name on Windows"),
    ],
)
def test_what_is_wrong_is_told(app_id: str, words: str) -> None:
    assert words in str(android_id_problem(app_id))


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("ResNet-50", "resnet_50"),
        ("8w4a", "app_8w4a"),
        ("---", "app"),
        ("class", "app_class"),
        ("nul", "app_nul"),
    ],
)
def test_a_part_of_an_id_is_made_of_any_name(text: str, segment: str) -> None:
    assert suggested_segment(text) == segment
    assert android_id_problem(f"org.example.{segment}") is None
