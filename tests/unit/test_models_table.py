"""The table of docs/models.md: rows from run records, as Markdown."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.models import FAMILIES, Row, command, figures, line, replaced, rows_of, table

_RUN: dict[str, Any] = {
    "started_at": "2026-11-27T21:06:26+00:00",
    "device": {"facts": {"model": "Some CPU", "cpu_count": 2}},
}
_FAMILY = {family.name: family for family in FAMILIES}
_TEXT: dict[str, Any] = {
    **_RUN,
    "program": {"size_bytes": 2_000_000},
    "workload": {
        "points": [{"token_ms": {"median": 0.5}, "ttft_ms": 4.0}],
        "texts": [{"equal_tokens": 12, "expected_ids": [1] * 16, "within_tolerance": True}],
    },
}
_OUTPUTS: dict[str, Any] = {
    **_RUN,
    "program": {"size_bytes": 500_000},
    "workload": {
        "latency_ms": {"median": 0.125},
        "outputs": [
            {"max_abs_error": 1e-7, "within_tolerance": True},
            {"max_abs_error": 2e-3, "within_tolerance": False},
        ],
    },
}


_COMMANDS = [
    "etdeploy run --model ./vit --image photo.png --set export.quantization=none --device host",
    "etdeploy run --model ./yolos --image photo.png --set export.quantization=none --device host",
]


def test_rows_show_text_outputs_and_failures() -> None:
    text = Row("t5", "8da4w", "", 30.4, **figures(_TEXT))
    outputs = Row("vit", "openvino/none", "", None, **figures(_OUTPUTS))
    failed = Row("detr", "none", "", failure="error (export): a | b")
    assert [line(row) for row in (text, outputs, failed)] == [
        "| T5, `text2text-generation` | `xnnpack/8da4w` | 30 s | 2.00 MB | 2,000 tokens/s, first "
        "after 4 ms | 12 of 16 tokens, logits within tolerance "
        "| Some CPU, 2 processors, 2026-11-27 |",
        "| ViT, `image-classification` | `openvino/none` |  | 0.50 MB | 0.125 ms | 2.0e-03, not "
        "within tolerance | Some CPU, 2 processors, 2026-11-27 |",
        "| DETR, `object-detection` | `xnnpack/none` |  |  |  | error (export): a \\| b |  |",
    ]


def test_a_command_names_backend_and_scheme() -> None:
    assert command(_FAMILY["vit"], "openvino/none") == [
        "etdeploy", "run", "--model", "./vit", "--image", "photo.png",
        "--set", "export.backend=openvino", "--set", "export.quantization=none",
        "--device", "host",
    ]  # fmt: skip
    assert "export.backend" not in " ".join(command(_FAMILY["t5"], "8da4w"))


def test_a_table_has_the_order_of_the_families_and_only_their_rows() -> None:
    vit, yolos = _COMMANDS
    lines = list(table({yolos: "| b |", "etdeploy run --model ./gone": "| c |", vit: "| a |"}))
    assert lines[2:] == ["| a |", "| b |", "", "```console", f"$ {vit}", f"$ {yolos}", "```"]


def test_a_pages_rows_are_read_and_replaced() -> None:
    text = "\n".join(table(dict(zip(_COMMANDS, ("| a |", "| b |"), strict=True))))
    page = replaced("a\n<!-- models.py -->\nold\n<!-- end -->\nb\n", text)
    assert page == f"a\n<!-- models.py -->\n\n{text}\n\n<!-- end -->\nb\n"
    assert rows_of(page) == dict(zip(_COMMANDS, ("| a |", "| b |"), strict=True))


@pytest.mark.parametrize(
    ("page", "mark"),
    [("no table", "<!-- models.py -->"), ("<!-- models.py -->\nand more\n", "<!-- end -->")],
)
def test_a_page_without_marks_is_not_replaced(page: str, mark: str) -> None:
    for call in (rows_of, lambda page: replaced(page, "| new |")):
        with pytest.raises(SystemExit) as caught:
            call(page)
        assert mark in str(caught.value)
