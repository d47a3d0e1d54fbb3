"""The table of docs/models.md: rows from run records, as Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.models import FAMILIES, Row, arguments, figures, replaced, table

_FAMILY = {family.name: family for family in FAMILIES}
_TEXT: dict[str, Any] = {
    "program": {"size_bytes": 2_000_000},
    "workload": {
        "points": [{"token_ms": {"median": 0.5}, "ttft_ms": 4.0}],
        "texts": [{"equal_tokens": 12, "expected_ids": [1] * 16, "within_tolerance": True}],
    },
}
_OUTPUTS: dict[str, Any] = {
    "program": {"size_bytes": 500_000},
    "workload": {
        "latency_ms": {"median": 0.125},
        "outputs": [
            {"max_abs_error": 1e-7, "within_tolerance": True},
            {"max_abs_error": 2e-3, "within_tolerance": False},
        ],
    },
}


def test_rows_show_text_outputs_and_failures() -> None:
    text = Row("t5", "8da4w", "etdeploy run --model ./t5", 30.4, **figures(_TEXT))
    outputs = Row("vit", "openvino/none", "etdeploy run --model ./vit", None, **figures(_OUTPUTS))
    failed = Row("detr", "none", "etdeploy run --model ./detr", failure="error (export): a | b")
    lines = list(table([text, outputs, failed]))
    assert lines[4:7] == [
        "| T5, `text2text-generation` | `xnnpack/8da4w` | 30 s | 2.00 MB | 2,000 tokens/s, first "
        "after 4 ms | 12 of 16 tokens, logits within tolerance |",
        "| ViT, `image-classification` | `openvino/none` |  | 0.50 MB | 0.125 ms | 2.0e-03, not "
        "within tolerance |",
        "| DETR, `object-detection` | `xnnpack/none` |  |  |  | error (export): a \\| b |",
    ]
    assert lines[8:] == [
        "```console",
        "$ etdeploy run --model ./t5",
        "$ etdeploy run --model ./vit",
        "$ etdeploy run --model ./detr",
        "```",
    ]


def test_a_command_names_backend_and_scheme() -> None:
    assert arguments(_FAMILY["vit"], "openvino/none") == [
        "run", "--model", "./vit", "--image", "photo.png", "--set", "export.backend=openvino",
        "--set", "export.quantization=none", "--device", "host",
    ]  # fmt: skip
    assert "export.backend" not in " ".join(arguments(_FAMILY["t5"], "8da4w"))


def test_the_table_of_a_page_is_replaced() -> None:
    page = "a\n<!-- models.py -->\nold\n<!-- end -->\nb\n"
    assert replaced(page, "| new |") == "a\n<!-- models.py -->\n\n| new |\n\n<!-- end -->\nb\n"
