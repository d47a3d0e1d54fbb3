"""Options are read as a checkout writes them, and known for a release without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.plan.cmake_options import (
    DEFAULTS_FILE,
    OptionTable,
    Relation,
    known_options,
    parse_options,
)
from etdeploy.provider.checkout import read_options


def _parse(text: str) -> OptionTable:
    return parse_options(text, "the test")


def _checkout(folder: Path, defaults: str, main: str = "") -> Path:
    (folder / DEFAULTS_FILE).parent.mkdir(parents=True)
    (folder / DEFAULTS_FILE).write_text(defaults)
    (folder / "CMakeLists.txt").write_text(main)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        'define_overridable_option(EXECUTORCH_A "One" BOOL OFF)',
        'define_overridable_option(\n  EXECUTORCH_A\n  "One"\n  BOOL OFF\n)',
        'define_overridable_option (  EXECUTORCH_A "One" BOOL OFF  )',
        'define_overridable_option(EXECUTORCH_A "With (parentheses)" BOOL OFF)',
        'define_overridable_option(EXECUTORCH_A "With \\"quotes\\" in it" STRING "")',
        'define_overridable_option(\n  EXECUTORCH_A "One" # (an aside\n  BOOL OFF\n)',
        'define_overridable_option(EXECUTORCH_A "Threads # of them" BOOL OFF)',
        '# told: (\ndefine_overridable_option(EXECUTORCH_A "One" BOOL OFF)',
        'if(ANDROID)\n  define_overridable_option(EXECUTORCH_A "One" BOOL ON)\nendif()',
    ],
)
def test_an_option_is_read_in_every_form(text: str) -> None:
    assert _parse(text).names == {"EXECUTORCH_A"}


@pytest.mark.parametrize(
    "text",
    [
        '# define_overridable_option(EXECUTORCH_A "One" BOOL OFF)',
        "set(EXECUTORCH_A ON)",
        'my_define_overridable_option(EXECUTORCH_A "One" BOOL OFF)',
        "define_overridable_option()",
        "",
    ],
)
def test_what_defines_no_option_is_not_read(text: str) -> None:
    assert _parse(text).names == frozenset()


def test_relations_are_read_over_several_lines() -> None:
    table = _parse(
        "check_required_options_on(\n  IF_ON EXECUTORCH_A REQUIRES EXECUTORCH_B # both\n"
        "  EXECUTORCH_C\n)\n"
        "check_conflicting_options_on(IF_ON EXECUTORCH_D CONFLICTS_WITH EXECUTORCH_E)\n"
    )
    assert table.requires == (Relation("EXECUTORCH_A", ("EXECUTORCH_B", "EXECUTORCH_C")),)
    assert table.conflicts == (Relation("EXECUTORCH_D", ("EXECUTORCH_E",)),)


def test_a_relation_of_another_form_is_left_out() -> None:
    table = _parse(
        "check_required_options_on(IF_ON EXECUTORCH_A)\n"
        "check_required_options_on(IF_OFF EXECUTORCH_A REQUIRES EXECUTORCH_B)\n"
    )
    assert table.requires == ()


def test_an_undefined_switch_of_the_main_file_is_read(tmp_path: Path) -> None:
    checkout = _checkout(
        tmp_path,
        'define_overridable_option(EXECUTORCH_A "One" BOOL OFF)',
        "if(EXECUTORCH_BUILD_ENN)\nendif()\n"
        "if(NOT EXECUTORCH_BUILD_OTHER)\nendif()\n"
        'option(EXECUTORCH_BUILD_THIRD "Three" OFF)\n'
        "# if(EXECUTORCH_BUILD_COMMENTED)\n"
        "message(EXECUTORCH_BUILD_PRINTED)\n",
    )
    assert read_options(checkout).names == {
        "EXECUTORCH_A",
        "EXECUTORCH_BUILD_ENN",
        "EXECUTORCH_BUILD_OTHER",
        "EXECUTORCH_BUILD_THIRD",
    }


def test_an_option_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path, "")
    (checkout / DEFAULTS_FILE).write_bytes(b"\xff\xfe\x00option")
    with pytest.raises(BuildError, match="not a checkout"):
        read_options(checkout)


@pytest.mark.parametrize("version", ["1.3.0", "1.3.1", "1.4.1", "1.5.1", "1.5.0a0"])
def test_every_related_option_of_a_known_release_exists(version: str) -> None:
    table = known_options(version)
    for relation in (*table.requires, *table.conflicts):
        assert {relation.if_on, *relation.others} <= table.names
    assert table.origin == f"ExecuTorch {version[:3]}"
